"""Attestation: the server can talk, and it runs what the recipe asked for.

Positive evidence only: a setting that the server cannot report is a failed check, not a pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from gnomon.harness.adapters.protocol import Setting
from gnomon.harness.cancel import CancelToken, call_until_cancelled
from gnomon.harness.errors import AttestationFailed
from gnomon.harness.evidence.verdicts import Check, CheckState, Scope
from gnomon.harness.launch import probes
from gnomon.harness.launch.probes import Probe, ProbeFailed
from gnomon.harness.nouns import ServerAddress

_MISSING = object()


@dataclass(frozen=True)
class Attestation:
    """What was asked of the running server and what it answered.

    Attributes:
        checks: probes first, then one check a setting.
        info: the server's own description of itself.
        raw: requests and answers of the probes, by probe.
    """

    checks: tuple[Check, ...]
    info: Mapping[str, Any]
    raw: Mapping[str, Any]

    def require(self) -> None:
        """Stop before any load is sent when a check failed.

        Raises:
            AttestationFailed: with the evidence of every failed check.
        """
        failed = [check for check in self.checks if check.state is CheckState.FAILED]
        if failed:
            listed = "\n".join(f"  - {check.name}: {check.evidence}" for check in failed)
            raise AttestationFailed(
                f"{len(failed)} of {len(self.checks)} checks failed before any load was sent:\n"
                f"{listed}"
            )


def attest(
    server: ServerAddress,
    info_path: str | None,
    settings: Sequence[Setting],
    deadline_s: float,
    scope: Scope,
    cancel: CancelToken,
    progress: Callable[[str], None],
) -> Attestation:
    """Hold every probe conversation and compare every setting.

    All are done even after a failure, so that one run shows everything that is wrong.

    Args:
        server: where it listens.
        info_path: of its description of itself; None if the engine has none.
        settings: what it must report.
        deadline_s: for all probes together.
        scope: of the run.
        cancel: ends the wait for an answer.
        progress: told what is under way.

    Raises:
        RunCancelled: the token was set.
    """
    checks: list[Check] = []
    raw: dict[str, Any] = {}
    end = time.monotonic() + deadline_s

    def run_probe(name: str, probe: Callable[[httpx.Client], Probe]) -> Probe | None:
        progress(name)
        left_s = max(0.1, end - time.monotonic())

        def call() -> Probe:
            with probes.client_for(server, left_s) as client:
                return probe(client)

        try:
            result = call_until_cancelled(call, cancel, left_s)
        except ProbeFailed as error:
            failure = str(error)
        except (TimeoutError, httpx.TimeoutException):
            failure = f"no answer within {left_s:.1f} s (deadlines.attest_s is {deadline_s:g})"
        except httpx.HTTPError as error:
            cancel.event.wait(0.5)  # a dying server resets connections before it is seen dead
            cancel.check()
            failure = f"{type(error).__name__}: {error}"
        else:
            raw[name] = dict(result.raw)
            checks.append(_check(f"ready: {name}", True, result.evidence, scope))
            return result
        raw[name] = {"failure": failure}
        checks.append(_check(f"ready: {name}", False, failure, scope))
        return None

    run_probe("served model name", lambda client: probes.served_name(client, server))
    run_probe("streamed completion", lambda client: probes.streamed_completion(client, server))
    run_probe("tool-call round trip", lambda client: probes.tool_round_trip(client, server))
    info: Mapping[str, Any] = {}
    if info_path is not None:
        described = run_probe("self-description", lambda client: _describe(client, info_path))
        info = described.raw if described is not None else {}
    checks.extend(compare(settings, info, scope))
    return Attestation(tuple(checks), info, raw)


def compare(
    settings: Sequence[Setting], info: Mapping[str, Any], scope: Scope
) -> tuple[Check, ...]:
    """One check a setting: what was asked against what the server reports.

    Booleans and numbers are compared as such (``True`` is not ``1``), everything else as text.
    """
    checks = []
    for setting in settings:
        served = look_up(info, setting.pointer)
        if served is _MISSING or served is None:
            same, evidence = False, f"asked {setting.asked!r}, the server does not report it"
        else:
            same = type(served) is type(setting.asked) and served == setting.asked
            evidence = (
                f"asked {setting.asked!r}, served {served!r}"
                if not same
                else f"served {served!r}, as asked"
            )
        checks.append(_check(f"attested: {setting.name}", same, evidence, scope))
    return tuple(checks)


def look_up(info: Mapping[str, Any], pointer: str) -> Any:
    """The value at a dotted path, or a marker that equals nothing."""
    value: Any = info
    for part in pointer.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _MISSING
        value = value[part]
    return value


def _describe(client: httpx.Client, info_path: str) -> Probe:
    response = client.get(info_path)
    if response.status_code != 200:
        raise ProbeFailed(f"{info_path} answers {response.status_code}: {response.text[:200]}")
    answer = response.json()
    if not isinstance(answer, dict):
        raise ProbeFailed(f"{info_path} does not answer with an object")
    return Probe(f"{info_path} describes the server", answer)


def _check(name: str, passed: bool, evidence: str, scope: Scope) -> Check:
    state = CheckState.PASSED if passed else CheckState.FAILED
    return Check(
        name=name,
        state=state,
        evidence=evidence,
        scope=scope,
        n=1,
        artifacts=("attestation.json",),
    )
