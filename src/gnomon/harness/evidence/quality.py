"""The quality verdict: scores with their denominators, or why there are none."""

from __future__ import annotations

from gnomon.harness.evals.spec import BfclSpec
from gnomon.harness.evidence.seen import Evidence, not_run, result_of, suite_name
from gnomon.harness.evidence.verdicts import (
    Check,
    CheckState,
    Figure,
    Scope,
    Verdict,
    VerdictKind,
    verdict,
)
from gnomon.harness.recipes.point import Point
from gnomon.harness.stats.intervals import wilson


def quality_verdict(point: Point, seen: Evidence) -> Verdict:
    """How well the model answers, where its weights can have a quality at all."""
    checks = [_quality_check(spec, point, seen) for spec in point.evals]
    if not checks:
        summary = "Not run: the recipe has no evaluations."
    elif all(item.state is CheckState.NOT_RUN for item in checks):
        summary = "Not run: the run ended before the evaluations."
    elif point.model.weights == "random":
        summary = (
            "Not applicable to this model: its weights are random. The cases show that requests, "
            "tools and parsers work, not how well a model answers."
        )
    else:
        measured = sum(item.state is CheckState.PASSED for item in checks)
        summary = f"{measured} of {len(checks)} suites have a score ({point.scope} scope)."
    return verdict(VerdictKind.QUALITY, checks, summary)


def _quality_check(spec: BfclSpec, point: Point, seen: Evidence) -> Check:
    name = f"{suite_name(spec)}: score"
    result = result_of(spec, seen)
    if result is None:
        return not_run(name, point.scope)
    counted = f"{result.passed} of {result.expected} cases passed"

    def make(state: CheckState, evidence: str, figures: tuple[Figure, ...] = ()) -> Check:
        return Check(
            name=name,
            state=state,
            evidence=evidence,
            scope=Scope(result.scope),
            n=result.expected,
            figures=figures,
            artifacts=("evals.json",),
        )

    if point.model.weights == "random":
        return make(
            CheckState.NOT_APPLICABLE, f"{counted}; random weights give no quality to measure."
        )
    if result.score is None:
        low, high = result.bounds
        return make(
            CheckState.FAILED,
            "no score: not every case was answered, or something went wrong around them; it would "
            f"lie between {low:.0%} and {high:.0%}.",
        )
    figure = Figure(
        metric="accuracy",
        value=result.score,
        unit="fraction",
        n=result.expected,
        scope=Scope(result.scope),
        interval=wilson(result.passed, result.expected),
    )
    return make(
        CheckState.PASSED,
        f"{counted}; measured, with no threshold in the recipe to hold it to.",
        (figure,),
    )
