from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnomon.harness.evals.model import Outcome, SuiteResult
from gnomon.harness.evidence.figures import replay_figures
from gnomon.harness.evidence.judge import judge
from gnomon.harness.evidence.seen import Evidence
from gnomon.harness.evidence.verdicts import Check, CheckState, Scope, Verdict
from gnomon.harness.launch.processes import Remnant
from gnomon.harness.launch.supervisor import Teardown
from gnomon.harness.nouns import Finding
from gnomon.harness.recipes.point import Point
from gnomon.harness.replay.results import CacheHits, ReplayCounts, ReplayResult

GONE = Teardown(0, True, (), (), False, 0.5)
ATTESTED = (
    Check(name="attested: seed", state=CheckState.PASSED, evidence="0", scope=Scope.SMOKE, n=1),
)
MakeReplay = Callable[..., ReplayResult]
MakeSuite = Callable[..., SuiteResult]


@pytest.fixture
def seen(make_replay: MakeReplay, make_suite: MakeSuite) -> Evidence:
    """Everything went well."""
    return Evidence(
        ready_s=3.0,
        attestation=ATTESTED,
        replay=make_replay(),
        suites=[make_suite("chat"), make_suite("responses")],
        teardown=GONE,
    )


def failed(verdict: Verdict) -> list[str]:
    return [check.name for check in verdict.with_state(CheckState.FAILED)]


def test_a_run_of_random_weights_is_complete_and_has_no_quality(
    point: Point, seen: Evidence
) -> None:
    verdicts = judge(point, seen)
    assert verdicts.integration.state is CheckState.PASSED
    assert verdicts.quality.state is CheckState.NOT_APPLICABLE
    assert verdicts.performance.state is CheckState.PASSED
    assert not any(check.figures for check in verdicts.quality.checks)
    assert "random" in verdicts.quality.summary


def test_trained_weights_have_a_score_for_each_api_and_never_a_joint_one(
    point: Point, seen: Evidence
) -> None:
    model = point.model.model_copy(update={"weights": "trained"})
    quality = judge(point.model_copy(update={"model": model}), seen).quality
    assert [check.name for check in quality.checks] == [
        "bfcl_smoke through Chat Completions: score",
        "bfcl_smoke through Responses: score",
    ]
    for check in quality.checks:
        (figure,) = check.figures
        assert (figure.value, figure.n, figure.scope) == (0.25, 4, Scope.SMOKE)
        assert figure.interval is not None


BROKEN: list[tuple[str, dict[str, Any], list[str]]] = [
    ("cut short", {"reason": "deadline"}, ["replay: ran to its end"]),
    ("cancelled", {"was_cancelled": True}, ["replay: ran to its end"]),
    ("client failed", {"exit_code": 1}, ["replay: ran to its end"]),
    (
        "requests lost",
        {"counts": ReplayCounts(18, 17, 17, 0, 0, 0)},
        ["replay: every request answered"],
    ),
    ("nothing ran", {"counts": ReplayCounts(0, 0, 0, 0, 0, 0)}, ["replay: every request answered"]),
    (
        "books disagree",
        {"findings": (Finding("totals-agree", False, "18 and 17"),)},
        ["replay: totals-agree"],
    ),
    ("no hits", {"client_cache": CacheHits(0, 9, "usage")}, ["replay: prefix cache hit"]),
    (
        "hits not reported",
        {"client_cache": None, "server_cache": None},
        ["replay: prefix cache hit"],
    ),
]


@pytest.mark.parametrize(("changes", "names"), [case[1:] for case in BROKEN],
                         ids=[case[0] for case in BROKEN])  # fmt: skip
def test_a_replay_with_a_flaw_fails_integration_by_name(
    changes: dict[str, Any],
    names: list[str],
    point: Point,
    seen: Evidence,
    make_replay: MakeReplay,
) -> None:
    seen.replay = make_replay(**changes)
    found = failed(judge(point, seen).integration)
    assert set(names) <= set(found)


def test_failed_requests_make_the_latencies_invalid_not_better(
    point: Point, seen: Evidence, make_replay: MakeReplay
) -> None:
    seen.replay = make_replay(errors=3)
    verdicts = judge(point, seen)
    assert verdicts.performance.state is CheckState.FAILED
    assert "population complete" in failed(verdicts.performance)
    rate = next(
        figure
        for check in verdicts.performance.checks
        for figure in check.figures
        if figure.metric == "error_rate"
    )
    assert rate.value == pytest.approx(3 / 18)


@pytest.mark.parametrize(
    "outcome", [outcome for outcome in Outcome if not outcome.is_answer], ids=str
)
def test_a_case_without_an_answer_fails_integration_and_leaves_no_score(
    outcome: Outcome, point: Point, seen: Evidence, make_suite: MakeSuite
) -> None:
    model = point.model.model_copy(update={"weights": "trained"})
    seen.suites[0] = make_suite("chat", (Outcome.PASS,) * 3 + (outcome,))
    verdicts = judge(point.model_copy(update={"model": model}), seen)
    assert failed(verdicts.integration) == [
        "bfcl_smoke through Chat Completions: every case answered"
    ]
    assert failed(verdicts.quality) == ["bfcl_smoke through Chat Completions: score"]
    assert not verdicts.quality.with_state(CheckState.FAILED)[0].figures


def test_what_did_not_happen_is_listed_as_not_run(point: Point) -> None:
    verdicts = judge(point, Evidence(failed_stage="launch", reason="no memory", teardown=GONE))
    assert verdicts.integration.state is CheckState.FAILED
    assert verdicts.quality.state is CheckState.NOT_RUN
    assert verdicts.performance.state is CheckState.NOT_RUN
    names = {check.name for check in verdicts.integration.with_state(CheckState.NOT_RUN)}
    assert "replay: every request answered" in names
    assert "bfcl_smoke through Responses: every case answered" in names


@pytest.mark.parametrize(
    ("teardown", "names"),
    [
        (Teardown(1, True, (), (), False, 1.0), ["teardown: server ended when asked"]),
        (Teardown(-15, True, (), (), False, 1.0), []),
        (
            Teardown(-9, True, (Remnant(7, "core"),), (), False, 1.0),
            ["teardown: server ended when asked"],
        ),
        (Teardown(0, True, (), (Remnant(7, "core"),), False, 1.0), ["teardown: nothing left"]),
        (Teardown(0, True, (), (), True, 1.0), ["teardown: nothing left"]),
        (Teardown(-9, False, (), (), False, 1.0), ["teardown: server ended when asked"]),
    ],
)
def test_teardown_proves_that_nothing_is_left(
    teardown: Teardown, names: list[str], point: Point, seen: Evidence
) -> None:
    seen.teardown = teardown
    assert failed(judge(point, seen).integration) == names


def test_percentiles_that_the_sample_cannot_hold_are_withheld(make_replay: MakeReplay) -> None:
    figures = replay_figures(make_replay(), Scope.SMOKE)
    assert {figure.metric for figure in figures.latency} >= {"ttft_ms.p50", "ttft_ms.p90"}
    assert "ttft_ms.p99" in {item.metric for item in figures.withheld}
    assert all(figure.n == 18 for figure in figures.latency)


def test_rates_count_completed_requests_over_the_whole_window(make_replay: MakeReplay) -> None:
    rates = {figure.metric: figure for figure in replay_figures(make_replay(), Scope.SMOKE).rates}
    assert rates["output_tokens_per_s"].value == pytest.approx(18 * 20 / 9.5)
    assert rates["requests_per_s"].value == pytest.approx(18 / 9.5)
    assert rates["cache_hit_rate"].value == pytest.approx(4000 / 18000)


def test_a_missing_token_count_withholds_the_rate(make_replay: MakeReplay) -> None:
    replay = make_replay()
    object.__setattr__(replay.records[0], "output_tokens", None)
    figures = replay_figures(replay, Scope.SMOKE)
    assert "output_tokens_per_s" not in {figure.metric for figure in figures.rates}
    assert "output_tokens_per_s" in {item.metric for item in figures.withheld}
