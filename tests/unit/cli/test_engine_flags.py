"""The engine's flags are the engine's options, no more and no less."""

from __future__ import annotations

from enum import Enum

import pytest

from gnomon.cli.engine_flags import FLAGS, Flag, parse_options
from gnomon.engine.options import EngineOptions


def test_every_option_but_the_model_has_a_flag() -> None:
    assert {"model", *(flag.field for flag in FLAGS)} == set(EngineOptions.model_fields)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.field)
def test_the_help_shows_the_default_of_the_option(flag: Flag) -> None:
    default = EngineOptions.model_fields[flag.field].default
    if isinstance(default, bool):
        assert flag.default == ("on" if default else "off")
    elif default is None:
        assert flag.default == ""
    else:
        assert flag.default == str(default.value if isinstance(default, Enum) else default)


@pytest.mark.parametrize(
    ("flag", "spelling"),
    [
        ("max_model_len", "--max-model-len"),
        ("enable_prefix_caching", "--enable-prefix-caching/--no-enable-prefix-caching"),
    ],
)
def test_flags_keep_the_spelling_that_users_know(flag: str, spelling: str) -> None:
    assert {f.field: f.flag for f in FLAGS}[flag] == spelling


def test_what_is_not_given_is_left_to_the_options() -> None:
    options, problems = parse_options("nano", {"max_num_seqs": 3})
    assert problems == ()
    assert options == EngineOptions(model="nano", max_num_seqs=3)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**30])
def test_a_seed_that_no_message_can_carry_is_refused(seed: int) -> None:
    options, problems = parse_options("nano", {"seed": seed})
    assert options is None
    assert "--seed" in str(problems)
