"""The performance verdict: figures of the replay, valid only over all of its requests."""

from __future__ import annotations

from collections.abc import Sequence

from gnomon.harness.evidence.figures import FigureSet, replay_figures
from gnomon.harness.evidence.seen import Evidence, check, not_run
from gnomon.harness.evidence.verdicts import (
    Check,
    CheckState,
    Scope,
    Verdict,
    VerdictKind,
    verdict,
)
from gnomon.harness.recipes.point import Point
from gnomon.harness.replay.results import ReplayResult


def performance_verdict(point: Point, seen: Evidence) -> Verdict:
    """How fast the server was, over a population that is whole."""
    scope, replay = point.scope, seen.replay
    if point.replay is None:
        return verdict(VerdictKind.PERFORMANCE, (), "Not run: the recipe has no replay.")
    if replay is None or not replay.records:
        return verdict(
            VerdictKind.PERFORMANCE,
            [not_run("replay measured", scope)],
            "Not run: there are no measured requests.",
        )
    figures = replay_figures(replay, scope)
    checks = _performance_checks(point, replay, figures)
    words = {
        Scope.SMOKE: "Measured, at smoke scope: proof of the path, not numbers to compare.",
        Scope.DIAGNOSTIC: "Measured, at diagnostic scope: not to be published.",
        Scope.FULL: "Measured over the whole window.",
    }
    valid = all(item.state is not CheckState.FAILED for item in checks)
    return verdict(
        VerdictKind.PERFORMANCE,
        checks,
        words[scope] if valid else "Invalid: requests are missing or failed, so tails are cut off.",
    )


def _performance_checks(point: Point, replay: ReplayResult, figures: FigureSet) -> Sequence[Check]:
    scope, counts = point.scope, replay.counts
    withheld = "; ".join(f"{item.metric}: {item.reason}" for item in figures.withheld)
    checks = [
        check(
            "population complete",
            replay.ok,
            f"{counts.completed} of {counts.expected} requests are in the numbers; failed or "
            "missing requests would hide the slow tail",
            scope,
            counts.expected,
            ("replay.json", "requests.parquet"),
        ),
        check(
            "latency measured",
            bool(figures.latency),
            f"{len(figures.latency)} percentiles" + (f"; withheld: {withheld}" if withheld else ""),
            scope,
            counts.completed,
            ("replay.json", "requests.parquet"),
            figures.latency,
        ),
        check(
            "throughput and cache measured",
            bool(figures.rates),
            f"over {replay.duration_s:.1f} s from the first request sent to the last request "
            "ended, drain included",
            scope,
            counts.completed,
            ("replay.json", "requests.parquet"),
            figures.rates,
        ),
    ]
    if scope is not Scope.FULL:
        checks.append(
            Check(
                name="publishable",
                state=CheckState.NOT_APPLICABLE,
                evidence=f"{scope} scope: not to be published or compared",
                scope=scope,
                n=0,
            )
        )
    return checks
