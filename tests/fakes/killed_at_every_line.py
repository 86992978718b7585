"""Changes of a store, each by a process that kills itself at one line of the store's code.

Usage: ``python killed_at_every_line.py seal|import|amend FOLDER``. One process is forked for every
line that the change executes in ``gnomon.harness.evidence``; it gets SIGKILL before that line. What
it left is looked at by this program, which prints one JSON object with counts of what was found.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.unit.evidence.runs import manifest, sealed_run

from gnomon.harness.evidence import seal as evidence_room
from gnomon.harness.evidence.amendments import AmendmentKind
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.manifest import RunState
from gnomon.harness.evidence.remote import export_run
from gnomon.harness.evidence.store import Store, delete

ROOM = str(Path(evidence_room.__file__).parent)
DONE = 77


def killed_at(line: int, change: Callable[[], Any]) -> bool:
    """Make the change in a child that is killed before its n-th line; False if it has fewer."""
    child = os.fork()
    if child == 0:
        left = line

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            if not frame.f_code.co_filename.startswith(ROOM):
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        try:
            change()
        finally:
            os._exit(DONE)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == DONE, status
    return False


def sealing(root: Path, line: int) -> str | None:
    """A run whose process is killed while it seals it."""
    run = RunFolder.create(root, "x")
    run.write_text("server/log.txt", "a log\n")
    run.write_text("verdicts.json", "{}")
    open_manifest = manifest(run_id=run.path.name, state=RunState.RUNNING)
    run.save_manifest(open_manifest)
    name = run.path
    del run  # the parent gives it up; only the child writes it

    def change() -> None:
        final = RunFolder(name).load_manifest()
        final.state = RunState.COMPLETE
        RunFolder(name).seal(final)

    killed = killed_at(line, change)
    left = RunFolder(name)
    if left.sealed:
        assert not left.faults(), (line, left.faults())
        assert left.load_manifest().state is RunState.COMPLETE
        return "whole" if killed else None
    assert killed, line
    left.load_manifest()
    Store(root).finish(left)
    assert not left.faults(), (line, left.faults())
    return "no run, and sealed afterwards"


def importing(root: Path, line: int) -> str | None:
    """An import that is killed."""
    packed = root / "packed.run.tar"
    if not packed.exists():
        export_run(sealed_run(root / "elsewhere"), str(packed))
    store = Store(root / f"store-{line}")

    def change() -> None:
        with packed.open("rb") as file:
            store.take_in(file, "packed")

    killed = killed_at(line, change)
    runs = list(store.runs())
    assert all(not run.faults() for run in runs), line
    for path, _ in list(store.garbage(unsealed=True)):
        delete(path)
    assert list(store.root.glob(".*")) == [], line
    shutil.rmtree(store.root, ignore_errors=True)
    if not killed:
        assert len(runs) == 1
        return None
    return "whole" if runs else "no run"


def amending(root: Path, line: int) -> str | None:
    """A removal that is killed."""
    store = Store(root / f"store-{line}")
    run = sealed_run(store.root)
    killed = killed_at(line, lambda: store.amend(AmendmentKind.REMOVED, run, "it was wrong", None))
    said = store.amendments()
    assert len(said) <= 1
    shutil.rmtree(store.root)
    if not killed:
        assert len(said) == 1
        return None
    return "whole" if said else "no amendment"


if __name__ == "__main__":
    what = {"seal": sealing, "import": importing, "amend": amending}[sys.argv[1]]
    folder = Path(sys.argv[2])
    found: Counter[str] = Counter()
    lines = 0
    while (outcome := what(folder, lines)) is not None:
        found[outcome] += 1
        lines += 1
    print(json.dumps(found))
