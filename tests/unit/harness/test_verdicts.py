from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gnomon.harness.evidence.verdicts import (
    Check,
    CheckState,
    Figure,
    Interval,
    Scope,
    Verdict,
    VerdictKind,
    combine,
    verdict,
)

WHOLE = {
    "metric": "ttft_ms.p50",
    "value": 12.0,
    "unit": "ms",
    "n": 18,
    "scope": Scope.SMOKE,
    "no_interval_because": "3 session trees",
}


@pytest.mark.parametrize("missing", ["unit", "n", "scope", "no_interval_because"])
def test_a_number_without_unit_n_scope_or_uncertainty_cannot_be_built(missing: str) -> None:
    Figure.model_validate(WHOLE)
    with pytest.raises(ValidationError):
        Figure.model_validate({key: value for key, value in WHOLE.items() if key != missing})


@pytest.mark.parametrize(
    "change", [{"n": 0}, {"unit": ""}, {"value": float("nan")}, {"value": float("inf")}]
)
def test_an_empty_number_cannot_be_built(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Figure.model_validate({**WHOLE, **change})


def test_an_interval_and_an_excuse_for_none_exclude_each_other() -> None:
    interval = Interval(low=1, high=2, level=0.95, method="bootstrap")
    with pytest.raises(ValidationError, match="either an interval or the reason"):
        Figure.model_validate({**WHOLE, "interval": interval})


def test_a_check_cannot_pass_on_nothing() -> None:
    fields = {"name": "x", "evidence": "y", "scope": "smoke", "n": 0}
    Check.model_validate({**fields, "state": "not_run"})
    with pytest.raises(ValidationError, match="n = 0"):
        Check.model_validate({**fields, "state": "passed"})


def test_a_check_without_evidence_cannot_be_built() -> None:
    with pytest.raises(ValidationError):
        Check(name="x", state=CheckState.FAILED, evidence="", scope=Scope.SMOKE, n=1)


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        ("", "not_run"),
        ("passed", "passed"),
        ("not_applicable", "not_applicable"),
        ("passed not_applicable", "passed"),
        ("passed not_run", "not_run"),
        ("passed not_run failed", "failed"),
    ],
)
def test_a_whole_is_as_good_as_its_parts(states: str, whole: str) -> None:
    assert combine(map(CheckState, states.split())) == whole


@given(st.lists(st.sampled_from(CheckState)))
def test_one_failure_fails_the_whole_and_nothing_else_passes_it(states: list[CheckState]) -> None:
    whole = combine(states)
    assert (whole is CheckState.FAILED) == (CheckState.FAILED in states)
    if whole is CheckState.PASSED:
        assert CheckState.PASSED in states
        assert CheckState.NOT_RUN not in states


def test_a_verdict_cannot_contradict_its_checks() -> None:
    failed = Check(name="x", state=CheckState.FAILED, evidence="y", scope=Scope.SMOKE, n=1)
    assert verdict(VerdictKind.QUALITY, [failed], "no").state is CheckState.FAILED
    with pytest.raises(ValidationError, match="by its checks"):
        Verdict(kind=VerdictKind.QUALITY, state=CheckState.PASSED, summary="yes", checks=(failed,))
