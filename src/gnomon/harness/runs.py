"""What the ``gnomon runs`` commands print, and their exit status."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gnomon.harness.command import NOT_PROVEN, OK, REFUSED
from gnomon.harness.errors import HarnessError, StoreError
from gnomon.harness.evidence import index
from gnomon.harness.evidence.amendments import AmendmentKind
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.keys import Difference, differences
from gnomon.harness.evidence.manifest import ContentKey
from gnomon.harness.evidence.pack import SUFFIX, unpack
from gnomon.harness.evidence.proven import unproven
from gnomon.harness.evidence.remote import export_run, open_packed, packed_runs
from gnomon.harness.evidence.seal import SEAL, SIGNATURE, Fault, sealed_hash
from gnomon.harness.evidence.signing import read_private_key, read_public_key
from gnomon.harness.evidence.store import Store, delete

P = ParamSpec("P")
_KEY_DIGITS = 12


def _print(text: str, style: str = "") -> None:
    Console(highlight=False).print(Text(text, style), soft_wrap=True)


def _or_refused(command: Callable[P, int]) -> Callable[P, int]:
    """A command whose user mistakes are a sentence and status 2."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return command(*args, **kwargs)
        except HarnessError as error:
            Console(stderr=True, highlight=False).print(
                Text(f"error: {error}", "red"), soft_wrap=True
            )
            return REFUSED

    return run


@_or_refused
def list_command(root: Path, *, as_json: bool) -> int:
    """Print every run of a store."""
    rows = index.rows(Store(root))
    if as_json:
        print(json.dumps({"runs": [asdict(row) for row in rows]}, indent=2))
        return OK
    if not rows:
        _print(f"no runs in {root}")
        return OK
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "state", "integration", "quality", "performance", "key", "notes"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        reused = f"reused {row.reused}" if row.reused else ""
        gone = "files deleted" if row.gone else ""
        table.add_row(
            *(row.run_id, row.state or "gone", row.integration, row.quality, row.performance),
            *(row.content_key[:_KEY_DIGITS], "; ".join(filter(None, (row.amended, gone, reused)))),
        )
    console = Console(highlight=False)
    if not console.is_terminal:  # a pipe has no width to fold for
        console = Console(highlight=False, width=max(console.width, 240))
    console.print(table)
    return OK


@_or_refused
def show_command(root: Path, name: str, *, as_json: bool) -> int:
    """Print one run."""
    store = Store(root)
    run = store.find(name)
    manifest, verdicts = run.load_manifest(), run.load_verdicts()
    sealed = sealed_hash(run.path)
    said = store.amendments().get(sealed or "")
    why = unproven(manifest, verdicts) if sealed else "it is not sealed"
    facts: dict[str, Any] = {
        "run": run.path.name,
        "state": str(manifest.state),
        "sealed": sealed,
        "signed_by": run.signer.hex() if run.signer else None,
        "content_key": manifest.content_key.sha256 if manifest.content_key else None,
        "reused": manifest.reused.run_id if manifest.reused else None,
        "amendment": said.sentence if said else None,
        "proven": why is None,
        "not_proven_because": why,
        "started": manifest.started,
        "recipe": manifest.recipe_source,
        "commit": manifest.build.commit,
        "source_sha256": manifest.build.source_sha256,
        "hardware": manifest.host.hardware_class,
        "files": len(manifest.artifacts),
        "bytes": sum(each.bytes for each in manifest.artifacts.values()),
    }
    listed = verdicts.all() if verdicts else ()
    if as_json:
        facts["verdicts"] = [each.model_dump(mode="json") for each in listed]
        print(json.dumps(facts, indent=2))
        return OK
    for key, value in facts.items():
        if value is not None:
            _print(f"{key.replace('_', ' '):<19} {value}")
    for verdict in listed:
        _print(f"{verdict.kind:<19} {verdict.state.replace('_', ' ')}: {verdict.summary}")
    return OK


@_or_refused
def verify_command(root: Path, chosen: list[str], signed_by: Path | None) -> int:
    """Read every byte and say what is not as it was sealed."""
    store = Store(root)
    signer = read_public_key(signed_by) if signed_by is not None else None
    store.amendments()
    if not chosen:
        sealed = [run for run in store.runs() if run.sealed]
        names = [str(run.path) for run in sealed]
        if not names:
            raise StoreError(f"{root} holds no sealed run to verify.")
    else:
        names = chosen
    whole = True
    for name in names:
        label, faults = _verified(store, name, signer)
        whole = whole and not faults
        _print(f"{'whole' if not faults else 'NOT WHOLE':<10} {label}", "" if not faults else "red")
        for fault in faults:
            _print(f"  {fault}")
    return OK if whole else NOT_PROVEN


def _verified(store: Store, name: str, signer: bytes | None) -> tuple[str, list[Fault]]:
    if not name.endswith(SUFFIX):
        run = store.find(name)
        return run.path.name, list(_faults(run, signer))
    with tempfile.TemporaryDirectory() as scratch, open_packed(name) as file:
        try:
            run = unpack(file, Path(scratch), name)
        except StoreError as error:
            return name, [Fault(Path(name).name, str(error))]
        return f"{run.path.name} in {name}", list(_faults(run, signer))


def _faults(run: RunFolder, signer: bytes | None) -> Iterator[Fault]:
    faults = run.faults()
    yield from faults
    if signer is None or any(fault.file in (SEAL, SIGNATURE) for fault in faults):
        return
    if run.signer is None:
        yield Fault(SIGNATURE, "missing: nobody signed the run")
    elif run.signer != signer:
        yield Fault(SIGNATURE, f"made with another key, {run.signer.hex()}")


@_or_refused
def explain_command(root: Path, a: str, b: str, *, as_json: bool) -> int:
    """Print which inputs of two keys differ."""
    store = Store(root)
    key_a, key_b = _key(store.find(a)), _key(store.find(b))
    found = differences(key_a.inputs, key_b.inputs)
    if as_json:
        print(json.dumps({"equal": not found, "differences": [asdict(d) for d in found]}, indent=2))
    elif not found:
        _print(f"equal keys: {key_a.sha256}")
    else:
        inputs = "1 input differs" if len(found) == 1 else f"{len(found)} inputs differ"
        _print(f"{inputs}: a {key_a.sha256[:_KEY_DIGITS]}, b {key_b.sha256[:_KEY_DIGITS]}")
        for each in found:
            _print(f"  {each.path}")
            _print(f"    a  {_value(each, 'a')}")
            _print(f"    b  {_value(each, 'b')}")
    return OK if not found else NOT_PROVEN


def _value(of: Difference, side: str) -> str:
    if of.only_in not in ("", side):
        return "(no such input)"
    return json.dumps(of.a if side == "a" else of.b, ensure_ascii=False)


def _key(run: RunFolder) -> ContentKey:
    key = run.load_manifest().content_key
    if key is None:
        raise StoreError(
            f"{run.path.name} has no content key: it ended before all of its inputs were known."
        )
    return key


@_or_refused
def seal_command(root: Path, name: str) -> int:
    """Finish what a killed process left."""
    store = Store(root)
    run = store.find(name)
    manifest = store.finish(run)
    _print(f"sealed  {run.path}  ({manifest.state}: {manifest.reason or 'whole'})")
    return OK


@_or_refused
def sign_command(root: Path, name: str, key: Path) -> int:
    """Sign a run."""
    run = Store(root).find(name)
    run.sign(read_private_key(key))
    _print(f"signed  {run.path.name}  by {run.signer.hex() if run.signer else ''}")
    return OK


@_or_refused
def export_command(root: Path, name: str, to: str) -> int:
    """Pack a run."""
    _print(f"packed  {export_run(Store(root).find(name), to)}")
    return OK


@_or_refused
def import_command(root: Path, source: str) -> int:
    """Bring packed runs in."""
    store = Store(root)
    for url in packed_runs(source):
        with open_packed(url) as file:
            run, new = store.take_in(file, url)
        _print(f"{'imported' if new else 'there already'}  {run.path}")
    return OK


@_or_refused
def supersede_command(root: Path, name: str, by: str, reason: str) -> int:
    """Record that a run is superseded."""
    store = Store(root)
    run, other = store.find(name), store.find(by)
    if run.path == other.path:
        raise StoreError("A run cannot supersede itself; name the newer one with --by.")
    if not other.sealed:
        raise StoreError(f"{other.path.name} is not sealed, so it cannot stand for another run.")
    said = store.amend(AmendmentKind.SUPERSEDED, run, reason, other.path.name)
    _print(f"{run.path.name} {said.sentence}")
    return OK


@_or_refused
def remove_command(root: Path, name: str, reason: str) -> int:
    """Record that a run must not be used."""
    store = Store(root)
    run = store.find(name)
    said = store.amend(AmendmentKind.REMOVED, run, reason, None)
    _print(f"{run.path.name} {said.sentence}")
    return OK


@_or_refused
def gc_command(root: Path, *, unsealed: bool, dry_run: bool) -> int:
    """Delete what is garbage."""
    listed = list(Store(root).garbage(unsealed))
    for path, why in listed:
        _print(f"{'would delete' if dry_run else 'deleted'}  {path}  ({why})")
        if not dry_run:
            delete(path)
    if not listed:
        _print("nothing to delete")
    return OK
