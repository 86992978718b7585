"""From what a run saw to its verdicts: pure functions, one list of checks a verdict.

Parts of a run that were planned and did not happen appear as checks that were not run, so that a
run cut short never looks better than one that went on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gnomon.harness.evals.model import SuiteResult
from gnomon.harness.evals.spec import BfclSpec
from gnomon.harness.evidence.figures import FigureSet, replay_figures
from gnomon.harness.evidence.verdicts import (
    Check,
    CheckState,
    Figure,
    Scope,
    Verdict,
    VerdictKind,
    Verdicts,
    verdict,
)
from gnomon.harness.launch.supervisor import Teardown
from gnomon.harness.recipes.schema import Recipe
from gnomon.harness.replay.results import ReplayResult
from gnomon.harness.stats.intervals import wilson

RANDOM_WEIGHTS = "quality not applicable to this model (random weights)"


@dataclass
class Evidence:
    """What a run has seen so far; parts it did not reach are None or empty.

    Attributes:
        preflight: checks of the machine.
        ready_s: from the server's start to its first healthy answer.
        attestation: checks of the running server.
        replay: the load client's result.
        suites: results of the evaluations that ran.
        teardown: how the server ended.
        failed_stage: the stage that ended the run early.
        reason: why.
    """

    preflight: tuple[Check, ...] = ()
    ready_s: float | None = None
    attestation: tuple[Check, ...] = ()
    replay: ReplayResult | None = None
    suites: list[SuiteResult] = field(default_factory=list)
    teardown: Teardown | None = None
    failed_stage: str | None = None
    reason: str = ""


def judge(recipe: Recipe, seen: Evidence) -> Verdicts:
    """All three verdicts of a run, whatever its state."""
    return Verdicts(
        integration=_integration(recipe, seen),
        quality=_quality(recipe, seen),
        performance=_performance(recipe, seen),
    )


def suite_name(spec: BfclSpec | SuiteResult) -> str:
    """A suite through one API, as checks and reports call it."""
    api = {"chat": "Chat Completions", "responses": "Responses"}[spec.api]
    return f"{spec.suite} through {api}"


def _integration(recipe: Recipe, seen: Evidence) -> Verdict:
    scope = recipe.scope
    checks = [*seen.preflight, *_ready_checks(seen, scope)]
    if recipe.replay is not None:
        checks.extend(_replay_checks(recipe, seen.replay, scope))
    for spec in recipe.evals:
        checks.append(_answered(spec, seen, scope))
    checks.extend(_teardown_checks(seen.teardown, scope))
    if seen.failed_stage is not None:
        checks.append(
            _check(f"stage {seen.failed_stage}", False, seen.reason or "no reason", scope, 1)
        )
    passed = sum(check.state is CheckState.PASSED for check in checks)
    ok = all(check.state in (CheckState.PASSED, CheckState.NOT_APPLICABLE) for check in checks)
    if ok:
        summary = f"Complete: {passed} checks passed, from the first probe to an empty machine."
    elif seen.failed_stage is not None:
        summary = (
            f"Ended at the {seen.failed_stage} stage; {passed} of {len(checks)} checks passed."
        )
    else:
        summary = f"Not proven: {passed} of {len(checks)} checks passed."
    return verdict(VerdictKind.INTEGRATION, checks, summary)


def _ready_checks(seen: Evidence, scope: Scope) -> list[Check]:
    if seen.ready_s is None:
        return [_not_run("ready: health", scope), _not_run("attestation", scope)]
    health = _check("ready: health", True, f"healthy {seen.ready_s:.1f} s after start", scope, 1)
    return [health, *(seen.attestation or (_not_run("attestation", scope),))]


def _replay_checks(recipe: Recipe, replay: ReplayResult | None, scope: Scope) -> list[Check]:
    if replay is None:
        return [_not_run("replay: every request answered", scope)]
    counts = replay.counts
    checks = [
        _check(
            "replay: ran to its end",
            replay.reason is None and not replay.was_cancelled and replay.exit_code == 0,
            replay.reason or f"the client ended with exit code {replay.exit_code}",
            scope,
            1,
        ),
        _check(
            "replay: every request answered",
            counts.expected > 0 and counts.completed == counts.expected and counts.errored == 0,
            f"{counts.completed} of {counts.expected} requests completed, {counts.errored} errors, "
            f"{counts.cancelled} cancelled, {counts.missing} missing",
            scope,
            counts.expected,
        ),
    ]
    checks.extend(
        _check(f"replay: {finding.name}", finding.passed, finding.evidence, scope, counts.recorded)
        for finding in replay.findings
    )
    if recipe.replay is not None and recipe.replay.traces.subagents:
        below = sum(record.agent_depth > 0 and record.completed for record in replay.records)
        checks.append(
            _check(
                "replay: sub-agents ran",
                below > 0,
                f"{below} completed requests belong to sub-agents",
                scope,
                below,
            )
        )
    caching = recipe.engine.flags.enable_prefix_caching
    if caching is not None and caching.value:
        checks.append(_cache_was_used(replay, scope))
    return checks


def _cache_was_used(replay: ReplayResult, scope: Scope) -> Check:
    """A recipe that asks for prefix caching needs hits, not the absence of complaints."""
    sources = [cache for cache in (replay.client_cache, replay.server_cache) if cache is not None]
    evidence = (
        "; ".join(
            f"{cache.hit_tokens} of {cache.queried_tokens} tokens ({cache.source})"
            for cache in sources
        )
        or "neither the answers nor the metrics report cached tokens"
    )
    hit = bool(sources) and all(cache.hit_tokens > 0 for cache in sources)
    return _check("replay: prefix cache hit", hit, evidence, scope, replay.counts.completed)


def _answered(spec: BfclSpec, seen: Evidence, scope: Scope) -> Check:
    """Every case got an answer that could be judged; what it was worth is for quality."""
    name = f"{suite_name(spec)}: every case answered"
    result = _result_of(spec, seen)
    if result is None:
        return _not_run(name, scope)
    classes = ", ".join(f"{n} {outcome}" for outcome, n in result.errors_by_class.items())
    faults = "; ".join(filter(None, (classes, *result.problems)))
    return _check(
        name,
        result.complete and result.expected > 0,
        f"{result.expected - sum(result.errors_by_class.values())} of {result.expected} cases "
        f"answered, {result.attempts} requests" + (f": {faults}" if faults else ""),
        scope,
        result.expected,
        ("evals.json",),
    )


def _teardown_checks(teardown: Teardown | None, scope: Scope) -> list[Check]:
    if teardown is None:
        return [_not_run("teardown: nothing left", scope)]
    left = ", ".join(str(remnant) for remnant in teardown.remnants)
    killed = ", ".join(str(remnant) for remnant in teardown.killed)
    nothing = (
        "no process of the server's group, session or mark is alive and its port is closed"
        if teardown.clean
        else f"still there: {left or 'no process'}; port "
        f"{'open' if teardown.port_open else 'closed'}"
    )
    if not teardown.asked:
        ended = f"it had ended before it was asked, with code {teardown.exit_code}"
    elif killed:
        ended = f"had to be killed: {killed}"
    else:
        ended = f"exit code {teardown.exit_code} {teardown.duration_s:.1f} s after SIGTERM"
    return [
        _check("teardown: server ended when asked", teardown.graceful, ended, scope, 1),
        _check("teardown: nothing left", teardown.clean, nothing, scope, 1),
    ]


def _quality(recipe: Recipe, seen: Evidence) -> Verdict:
    checks = [_quality_check(spec, recipe, seen) for spec in recipe.evals]
    if not checks:
        summary = "Not run: the recipe has no evaluations."
    elif recipe.model.weights == "random":
        summary = (
            "Not applicable to this model: its weights are random. The cases show that requests, "
            "tools and parsers work, not how well a model answers."
        )
    else:
        measured = sum(check.state is CheckState.PASSED for check in checks)
        summary = f"{measured} of {len(checks)} suites have a score ({recipe.scope} scope)."
    return verdict(VerdictKind.QUALITY, checks, summary)


def _quality_check(spec: BfclSpec, recipe: Recipe, seen: Evidence) -> Check:
    name = f"{suite_name(spec)}: score"
    result = _result_of(spec, seen)
    if result is None:
        return _not_run(name, recipe.scope)
    scope = Scope(result.scope)
    counted = f"{result.passed} of {result.expected} cases passed"
    common = {"name": name, "scope": scope, "n": result.expected, "artifacts": ("evals.json",)}
    if recipe.model.weights == "random":
        return Check.model_validate(
            {
                **common,
                "state": CheckState.NOT_APPLICABLE,
                "evidence": f"{counted}; random weights give no quality to measure.",
            }
        )
    if result.score is None:
        low, high = result.bounds
        return Check.model_validate(
            {
                **common,
                "state": CheckState.FAILED,
                "evidence": f"no score: not every case was answered; it would lie between "
                f"{low:.0%} and {high:.0%}.",
            }
        )
    figure = Figure(
        metric="accuracy",
        value=result.score,
        unit="fraction",
        n=result.expected,
        scope=scope,
        interval=wilson(result.passed, result.expected),
    )
    return Check.model_validate(
        {
            **common,
            "state": CheckState.PASSED,
            "evidence": f"{counted}; measured, with no threshold in the recipe to hold it to.",
            "figures": (figure,),
        }
    )


def _performance(recipe: Recipe, seen: Evidence) -> Verdict:
    scope, replay = recipe.scope, seen.replay
    if recipe.replay is None:
        return verdict(VerdictKind.PERFORMANCE, (), "Not run: the recipe has no replay.")
    if replay is None or not replay.records:
        return verdict(
            VerdictKind.PERFORMANCE,
            [_not_run("replay measured", scope)],
            "Not run: there are no measured requests.",
        )
    figures = replay_figures(replay, scope)
    checks = _performance_checks(recipe, replay, figures)
    words = {
        Scope.SMOKE: "Measured, at smoke scope: proof of the path, not numbers to compare.",
        Scope.DIAGNOSTIC: "Measured, at diagnostic scope: not to be published.",
        Scope.FULL: "Measured over the whole window.",
    }
    valid = all(check.state is not CheckState.FAILED for check in checks)
    return verdict(
        VerdictKind.PERFORMANCE,
        checks,
        words[scope] if valid else "Invalid: requests are missing or failed, so tails are cut off.",
    )


def _performance_checks(
    recipe: Recipe, replay: ReplayResult, figures: FigureSet
) -> Sequence[Check]:
    scope, counts = recipe.scope, replay.counts
    withheld = "; ".join(f"{item.metric}: {item.reason}" for item in figures.withheld)
    checks = [
        _check(
            "population complete",
            replay.ok,
            f"{counts.completed} of {counts.expected} requests are in the numbers; failed or "
            "missing requests would hide the slow tail",
            scope,
            counts.expected,
            ("replay.json",),
        ),
        _check(
            "latency measured",
            bool(figures.latency),
            f"{len(figures.latency)} percentiles" + (f"; withheld: {withheld}" if withheld else ""),
            scope,
            counts.completed,
            ("replay.json",),
            figures.latency,
        ),
        _check(
            "throughput and cache measured",
            bool(figures.rates),
            f"over {replay.duration_s:.1f} s from the first request sent to the last request "
            "ended, drain included",
            scope,
            counts.completed,
            ("replay.json",),
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


def _result_of(spec: BfclSpec, seen: Evidence) -> SuiteResult | None:
    for result in seen.suites:
        if (result.suite, result.api) == (spec.suite, spec.api):
            return result
    return None


def _check(
    name: str,
    passed: bool,
    evidence: str,
    scope: Scope,
    n: int,
    artifacts: tuple[str, ...] = (),
    figures: tuple[Figure, ...] = (),
) -> Check:
    # A statement about nothing is not a pass, whatever its condition says.
    state = CheckState.PASSED if passed and n > 0 else CheckState.FAILED
    return Check(
        name=name,
        state=state,
        evidence=evidence,
        scope=scope,
        n=n,
        figures=figures,
        artifacts=artifacts,
    )


def _not_run(name: str, scope: Scope) -> Check:
    return Check(
        name=name,
        state=CheckState.NOT_RUN,
        evidence="the run ended before it",
        scope=scope,
        n=0,
    )
