"""A store: a folder of runs, and what was said of them afterwards.

::

    runs/
      20261129T194739Z-quickstart-2196/   a run; sealed once it holds manifest.sha256
      amendments/                         one file each, only ever added
      .index.duckdb                       derived, deleted and built again at will

The folders are the truth. Any number of processes may write one store: every run has a name of its
own, every change is one rename, and nothing but the index is ever written twice.
"""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gnomon.harness.errors import StoreError
from gnomon.harness.evidence.amendments import Amendment, AmendmentKind, add, read_all
from gnomon.harness.evidence.atomic import UNFINISHED, fsync_path
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.held import Held
from gnomon.harness.evidence.manifest import Manifest, RunState
from gnomon.harness.evidence.pack import unpack
from gnomon.harness.evidence.seal import MANIFEST, SEAL, sealed_hash

AMENDMENTS = "amendments"
INCOMING = ".incoming-"
_ENDED = "its process ended before the run did; sealed afterwards, as far as it went"


class Store:
    """The runs below one folder.

    Attributes:
        root: that folder; it need not exist yet.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def runs(self) -> Iterator[RunFolder]:
        """Every run folder, sealed or not, oldest first."""
        if not self.root.is_dir():
            return
        for path in sorted(self.root.iterdir()):
            if path.name[0] != "." and ((path / MANIFEST).is_file() or (path / SEAL).is_file()):
                yield RunFolder(path)

    def find(self, name: str) -> RunFolder:
        """The run of an id, of a whole beginning of it, or of a path.

        Raises:
            StoreError: there is none, or more than one.
        """
        direct = Path(name)
        if (direct / MANIFEST).is_file():
            return RunFolder(direct.resolve())
        fits = [run for run in self.runs() if run.path.name.startswith(name)]
        exact = [run for run in fits if run.path.name == name]
        if len(exact or fits) == 1:
            return (exact or fits)[0]
        if fits:
            listed = ", ".join(run.path.name for run in fits[:4])
            raise StoreError(
                f"{len(fits)} runs begin with {name!r}: {listed}; give more of the id."
            )
        raise StoreError(
            f"no run in {self.root} begins with {name!r}; `gnomon runs list` names them, --store "
            "chooses another folder."
        )

    def amendments(self) -> dict[str, Amendment]:
        """The last amendment of every run that has one, by the hash of its manifest.

        Raises:
            StoreError: one of them is damaged.
        """
        return {each.manifest_sha256: each for each in read_all(self.root / AMENDMENTS)}

    def amend(self, kind: AmendmentKind, run: RunFolder, reason: str, by: str | None) -> Amendment:
        """Say something of a sealed run, for good.

        Raises:
            StoreError: it is not in this store, not sealed, or no reason is given.
        """
        if run.path.resolve().parent != self.root.resolve():
            raise StoreError(f"{run.path} is not in {self.root}; give its store with --store.")
        sealed = sealed_hash(run.path)
        if not sealed:
            raise StoreError(f"{run.path.name} is not sealed: only what cannot change is amended.")
        if not reason.strip():
            raise StoreError("An amendment needs a reason that others can read.")
        key = run.load_manifest().content_key
        amendment = Amendment(
            kind=kind,
            run_id=run.path.name,
            manifest_sha256=sealed,
            content_key=key.sha256 if key else None,
            by=by,
            reason=" ".join(reason.split()),
            at=dt.datetime.now(dt.UTC).isoformat(timespec="microseconds"),
        )
        add(self.root / AMENDMENTS, amendment)
        return amendment

    def take_in(self, file: IO[bytes], source: str) -> tuple[RunFolder, bool]:
        """Bring a packed run into the store, whole or not at all.

        Returns:
            The run, and whether it is new here.

        Raises:
            StoreError: it is damaged, or the store has another run of that id.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        incoming = Path(tempfile.mkdtemp(dir=self.root, prefix=INCOMING))
        held = Held.take(incoming)
        try:
            unpacked = unpack(file, incoming, source)
            path = self.root / unpacked.path.name
            try:
                unpacked.path.rename(path)
            except OSError:
                if sealed_hash(path) != sealed_hash(unpacked.path):
                    raise StoreError(
                        f"{path} is there already and is another run than {source}; import into "
                        "another store."
                    ) from None
                return RunFolder(path), False
            fsync_path(self.root)
            return RunFolder(path), True
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
            if held is not None:
                held.release()

    def finish(self, run: RunFolder) -> Manifest:
        """Seal a run whose process was killed, as far as it went.

        Raises:
            RunFolderError: it is sealed already, or its process is alive.
        """
        manifest = run.load_manifest()
        if manifest.state is RunState.RUNNING:
            manifest.state = RunState.INTERRUPTED
            manifest.reason = manifest.reason or _ENDED
            stages = [stage.name for stage in manifest.stages if stage.ended is None]
            manifest.failed_stage = manifest.failed_stage or (stages[-1] if stages else "start")
        run.seal(manifest)
        return manifest

    def garbage(self, unsealed: bool) -> Iterator[tuple[Path, str]]:
        """What may be deleted, and why: leftovers of killed processes, and runs that were removed.

        Args:
            unsealed: also runs that were never sealed and whose process is gone.
        """
        if not self.root.is_dir():
            return
        for path in sorted(self.root.glob(f"{INCOMING}*")):
            if Held.take(path) is not None:
                yield path, "an import that was killed"
        for path in sorted((self.root / AMENDMENTS).glob(f"{UNFINISHED}*")):
            yield path, "a write that was killed"
        amendments = self.amendments()
        for run in self.runs():
            sealed = sealed_hash(run.path)
            said = amendments.get(sealed or "")
            if said is not None and said.kind is AmendmentKind.REMOVED:
                yield run.path, said.sentence
            elif sealed is None and unsealed and Held.take(run.path) is not None:
                yield run.path, "never sealed, and its process is gone"
            elif sealed is not None:
                for path in sorted(run.path.rglob(f"{UNFINISHED}*")):
                    yield path, "a write that was killed"


def delete(path: Path) -> None:
    """Delete what `Store.garbage` named; a run disappears in one step before its files go."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    if not path.name.startswith(INCOMING):
        path = path.rename(path.with_name(f"{INCOMING}{path.name}"))
    shutil.rmtree(path)
