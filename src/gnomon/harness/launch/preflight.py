"""What must be true of the machine before anything is started."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from gnomon.harness.errors import PreflightFailed
from gnomon.harness.evidence.verdicts import Check, CheckState, Scope

MIN_FREE_BYTES = 1 << 30


def check_disk(out: Path, scope: Scope, min_free_bytes: int = MIN_FREE_BYTES) -> Check:
    """Whether the run folder's file system has room for raw client records."""
    free = shutil.disk_usage(out).free
    enough = free >= min_free_bytes
    return Check(
        name="preflight: disk space",
        state=CheckState.PASSED if enough else CheckState.FAILED,
        evidence=(
            f"{free / 2**30:.1f} GiB free under {out}, {min_free_bytes / 2**30:g} GiB are needed."
            + ("" if enough else " Free some space or choose another folder with --out.")
        ),
        scope=scope,
        n=1,
    )


def check_clients(
    names: Sequence[str], describe: Callable[[str], str], scope: Scope
) -> tuple[Check, ...]:
    """Whether each client environment that the recipe needs is installed.

    Args:
        names: of the clients.
        describe: returns an installed client's identity, or raises with what to do.
        scope: of the run.
    """
    checks = []
    for name in names:
        try:
            state, evidence = CheckState.PASSED, describe(name)
        except Exception as error:  # whatever is wrong with it, it is a failed check with a reason
            state, evidence = CheckState.FAILED, str(error) or type(error).__name__
        checks.append(
            Check(
                name=f"preflight: client {name}", state=state, evidence=evidence, scope=scope, n=1
            )
        )
    return tuple(checks)


def require(checks: Sequence[Check]) -> None:
    """Stop when a preflight check failed.

    Raises:
        PreflightFailed: with the evidence of every failed check.
    """
    failed = [check for check in checks if check.state is CheckState.FAILED]
    if failed:
        raise PreflightFailed(" ".join(f"{check.name}: {check.evidence}" for check in failed))
