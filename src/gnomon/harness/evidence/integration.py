"""The integration verdict: every part did its work, and nothing is left of it."""

from __future__ import annotations

from gnomon.harness.evals.spec import BfclSpec
from gnomon.harness.evidence.seen import Evidence, check, not_run, result_of, suite_name
from gnomon.harness.evidence.verdicts import (
    Check,
    CheckState,
    Scope,
    Verdict,
    VerdictKind,
    verdict,
)
from gnomon.harness.launch.supervisor import Teardown
from gnomon.harness.recipes.point import Point
from gnomon.harness.replay.results import ReplayResult


def integration_verdict(point: Point, seen: Evidence) -> Verdict:
    """Do the parts work together: from the machine's preflight to the empty machine after."""
    scope = point.scope
    checks = [*seen.preflight, *_ready_checks(seen, scope)]
    if point.replay is not None:
        checks.extend(_replay_checks(point, seen.replay, scope))
    for spec in point.evals:
        checks.append(_answered(spec, seen, scope))
    checks.extend(_teardown_checks(seen.teardown, scope))
    if seen.failed_stage is not None:
        checks.append(
            check(f"stage {seen.failed_stage}", False, seen.reason or "no reason", scope, 1)
        )
    passed = sum(item.state is CheckState.PASSED for item in checks)
    ok = all(item.state in (CheckState.PASSED, CheckState.NOT_APPLICABLE) for item in checks)
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
        return [not_run("ready: health", scope), not_run("attestation", scope)]
    health = check("ready: health", True, f"healthy {seen.ready_s:.1f} s after start", scope, 1)
    return [health, *(seen.attestation or (not_run("attestation", scope),))]


def _replay_checks(point: Point, replay: ReplayResult | None, scope: Scope) -> list[Check]:
    if replay is None:
        return [not_run("replay: every request answered", scope)]
    counts = replay.counts
    checks = [
        check(
            "replay: ran to its end",
            replay.reason is None and not replay.was_cancelled and replay.exit_code == 0,
            replay.reason or f"the client ended with exit code {replay.exit_code}",
            scope,
            1,
        ),
        check(
            "replay: every request answered",
            counts.expected > 0 and counts.completed == counts.expected and counts.errored == 0,
            f"{counts.completed} of {counts.expected} requests completed, {counts.errored} errors, "
            f"{counts.cancelled} cancelled, {counts.missing} missing",
            scope,
            counts.expected,
        ),
    ]
    checks.extend(
        check(f"replay: {finding.name}", finding.passed, finding.evidence, scope, counts.recorded)
        for finding in replay.findings
    )
    if point.replay is not None and point.replay.traces.subagents:
        below = sum(record.agent_depth > 0 and record.completed for record in replay.records)
        checks.append(
            check(
                "replay: sub-agents ran",
                below > 0,
                f"{below} completed requests belong to sub-agents",
                scope,
                below,
            )
        )
    caching = point.kv.prefix_caching
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
    return check("replay: prefix cache hit", hit, evidence, scope, replay.counts.completed)


def _answered(spec: BfclSpec, seen: Evidence, scope: Scope) -> Check:
    """Every case got an answer that could be judged; what it was worth is for quality."""
    name = f"{suite_name(spec)}: every case answered"
    result = result_of(spec, seen)
    if result is None:
        return not_run(name, scope)
    classes = ", ".join(f"{n} {outcome}" for outcome, n in result.errors_by_class.items())
    faults = "; ".join(filter(None, (classes, *result.problems)))
    return check(
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
        return [not_run("teardown: nothing left", scope)]
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
        check("teardown: server ended when asked", teardown.graceful, ended, scope, 1),
        check("teardown: nothing left", teardown.clean, nothing, scope, 1),
    ]
