"""Every shipped recipe starts exactly what its golden file says."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tests.unit.adapters.rendered import GOLDEN, RECIPES, expansion_of, text_of

from gnomon.harness.adapters.catalogue import ADAPTERS
from gnomon.harness.recipes.engine_spec import ENGINES
from gnomon.harness.sweep import commands, deploy


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_renders_as_its_golden_file_says(recipe: Path) -> None:
    assert text_of(recipe) == (GOLDEN / f"{recipe.stem}.txt").read_text()


def test_no_golden_file_is_left_of_a_recipe_that_is_gone() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {path.stem for path in RECIPES}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_only_load_points_force_acceptance(recipe: Path) -> None:
    """Whatever the engine calls its knob, no evaluation is started with it."""
    expansion = expansion_of(recipe)
    knobs = ("synthetic_acceptance", "SIMULATE_ACC", "FORCE_NUM_ACCEPTED", "acceptance-length")
    for planned in (*expansion.points, *expansion.evaluations):
        text = "\n".join(commands(planned.point, deploy(planned.point)))
        forced = any(knob in text for knob in knobs)
        assert forced == (planned.point.forced is not None)
        assert planned.point.profile == "load" or not forced


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_no_two_processes_of_a_deployment_share_a_port(recipe: Path) -> None:
    for planned in expansion_of(recipe).points:
        ports = [process.ready.port for process in deploy(planned.point).processes]
        assert len(set(ports)) == len(ports)


def test_every_engine_of_the_schema_has_an_adapter() -> None:
    assert set(ADAPTERS) == set(ENGINES)


def test_a_json_argument_is_one_word_of_json() -> None:
    recipe = next(path for path in RECIPES if path.stem == "minimax-m3-b200-vllm")
    point = expansion_of(recipe).points[-1].point
    argv = deploy(point).of("server").command.argv
    for option in ("--speculative-config", "--attention-config", "--kv-transfer-config"):
        value = argv[argv.index(option) + 1]
        assert json.loads(value)
        assert shlex.split(shlex.quote(value)) == [value]
