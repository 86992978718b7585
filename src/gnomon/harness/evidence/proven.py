"""When a run may stand for another one: equal content keys, proven valid, and untouched."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon.harness.errors import HarnessError
from gnomon.harness.evidence import index
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.manifest import Manifest, Reused, RunState
from gnomon.harness.evidence.seal import sealed_hash
from gnomon.harness.evidence.store import Store
from gnomon.harness.evidence.verdicts import (
    Check,
    CheckState,
    Scope,
    Verdict,
    VerdictKind,
    Verdicts,
    verdict,
)


@dataclass(frozen=True)
class Found:
    """What the store knows of a key.

    Attributes:
        run: the newest run that may be used, None if there is none.
        passed_over: runs of the same key that may not, each with the reason.
    """

    run: RunFolder | None
    passed_over: tuple[str, ...] = ()


def find_proven(store: Store, key: str) -> Found:
    """The newest run of a content key that is proven valid, every byte of it checked now.

    Raises:
        StoreError: an amendment is damaged.
    """
    passed_over: list[str] = []
    # The index only names candidates: each is read again, and every byte of it checked.
    for row in reversed(index.rows(store)):
        if row.content_key != key or row.state == index.UNSEALED or row.gone:
            continue
        run = RunFolder(store.root / row.run_id)
        why = row.amended or _unusable(run, key)
        if not why:
            return Found(run, tuple(passed_over))
        passed_over.append(f"{row.run_id}: {why}")
    return Found(None, tuple(passed_over))


def _unusable(run: RunFolder, key: str) -> str | None:
    faults = run.faults()
    if faults:
        return f"not what was sealed: {faults[0]}"
    try:
        manifest, verdicts = run.load_manifest(), run.load_verdicts()
    except HarnessError as error:
        return str(error)
    if manifest.content_key is None or manifest.content_key.sha256 != key:
        return "its content key is another one"
    return unproven(manifest, verdicts)


def unproven(manifest: Manifest, verdicts: Verdicts | None) -> str | None:
    """Why a run is no proof of its own figures, None if it is one.

    Whatever the recipe asked for must have been done and have passed. What it did not ask for, and
    what does not apply to its model, is no fault.
    """
    if manifest.reused is not None:
        return f"it measured nothing itself, it reused {manifest.reused.run_id}"
    if manifest.state is not RunState.COMPLETE:
        return f"its state is {manifest.state}"
    if verdicts is None:
        return "it has no verdicts"
    asked = {
        VerdictKind.INTEGRATION: True,
        VerdictKind.QUALITY: bool(manifest.recipe.get("evals")),
        VerdictKind.PERFORMANCE: manifest.recipe.get("replay") is not None,
    }
    for each in verdicts.all():
        fine = {CheckState.PASSED, CheckState.NOT_APPLICABLE}
        if not asked[each.kind]:
            fine.add(CheckState.NOT_RUN)
        if each.state not in fine:
            return f"its {each.kind} verdict is {each.state.replace('_', ' ')}"
    return None


def reused_from(run: RunFolder) -> Reused:
    """How a manifest names the run it reuses."""
    return Reused(run_id=run.path.name, manifest_sha256=sealed_hash(run.path) or "")


def reused_verdict(kind: VerdictKind, reused: Reused, scope: Scope) -> Verdict:
    """The verdict on something that another run measured and this one did not."""
    sentence = f"Not measured here: {reused.run_id} has the same content key and is proven valid."
    check = Check(
        name="measured in this run",
        state=CheckState.NOT_RUN,
        evidence=f"reused {reused.run_id}, manifest {reused.manifest_sha256}",
        scope=scope,
        n=0,
    )
    return verdict(kind, [check], sentence)
