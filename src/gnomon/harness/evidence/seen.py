"""What a run has seen, and how its parts become checks."""

from __future__ import annotations

from dataclasses import dataclass, field

from gnomon.harness.evals.model import SuiteResult
from gnomon.harness.evals.spec import BfclSpec
from gnomon.harness.evidence.verdicts import Check, CheckState, Figure, Scope
from gnomon.harness.launch.supervisor import Teardown
from gnomon.harness.replay.results import ReplayResult


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


def suite_name(spec: BfclSpec | SuiteResult) -> str:
    """A suite through one API, as checks and reports call it."""
    api = {"chat": "Chat Completions", "responses": "Responses"}[spec.api]
    return f"{spec.suite} through {api}"


def result_of(spec: BfclSpec, seen: Evidence) -> SuiteResult | None:
    """The result of a suite through one API, None if it did not run."""
    for result in seen.suites:
        if (result.suite, result.api) == (spec.suite, spec.api):
            return result
    return None


def check(
    name: str,
    passed: bool,
    evidence: str,
    scope: Scope,
    n: int,
    artifacts: tuple[str, ...] = (),
    figures: tuple[Figure, ...] = (),
) -> Check:
    """A check that passes if the statement holds and rests on at least one observation."""
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


def not_run(name: str, scope: Scope) -> Check:
    """A check of something that was planned and did not happen."""
    return Check(
        name=name,
        state=CheckState.NOT_RUN,
        evidence="the run ended before it",
        scope=scope,
        n=0,
    )
