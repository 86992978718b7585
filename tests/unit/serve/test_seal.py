"""Reasoning that clients carry for us comes back unchanged, or not at all."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon.engine.serve.seal import NotOurs, Seal

SECRET = "a secret of the tests"


@given(st.text())
def test_what_is_sealed_opens_with_the_same_secret_only(text: str) -> None:
    value = Seal(SECRET).close(text)
    assert Seal(SECRET).open(value) == text
    assert value.isascii()
    for other in (Seal(), Seal(SECRET + "x")):
        with pytest.raises(NotOurs):
            other.open(value)


@given(st.text(min_size=1), st.data())
def test_a_changed_value_does_not_open(text: str, data: st.DataObject) -> None:
    value = Seal(SECRET).close(text)
    at = data.draw(st.integers(0, len(value) - 1))
    char = data.draw(st.characters(codec="ascii").filter(lambda c: c != value[at]))
    changed = value[:at] + char + value[at + 1 :]
    with contextlib.suppress(NotOurs):
        assert Seal(SECRET).open(changed) == text  # base64 has bits that mean nothing
    with pytest.raises(NotOurs):
        Seal(SECRET).open(value[: at + 1] if at < len(value) - 1 else "")


@given(st.text())
def test_nonsense_does_not_open(value: str) -> None:
    with pytest.raises(NotOurs):
        Seal(SECRET).open(value)


def test_a_server_without_a_secret_draws_its_own() -> None:
    value = Seal().close("x")
    with pytest.raises(NotOurs):
        Seal().open(value)
