"""One of several processes that write the same store at the same time.

Usage: ``python store_writer.py STORE RUNS PACKED``. Makes and seals runs, removes every second one,
imports one packed run that all of them import, and reads the index in between. Prints the ids.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.unit.evidence.runs import sealed_run

from gnomon.harness.evidence import index
from gnomon.harness.evidence.amendments import AmendmentKind
from gnomon.harness.evidence.store import Store, delete

if __name__ == "__main__":
    store, count, packed = Store(Path(sys.argv[1])), int(sys.argv[2]), Path(sys.argv[3])
    made: list[str] = []
    removed: list[str] = []
    for i in range(count):
        run = sealed_run(store.root, seed=i)
        made.append(run.path.name)
        if i % 2:
            store.amend(AmendmentKind.REMOVED, run, "every second one", None)
            removed.append(run.path.name)
        with packed.open("rb") as file:
            store.take_in(file, "packed")
        assert set(made) <= {row.run_id for row in index.rows(store)}
        for path, why in store.garbage(unsealed=False):
            if why.startswith("removed") and path.name in removed:
                delete(path)
    print(json.dumps({"made": made, "removed": removed}))
