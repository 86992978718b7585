"""How long a store of many runs takes to index, from nothing and when little changed.

Usage: ``python -m benchmarks.store --runs 10000 --out evidence/store.json``. The runs are
synthetic: one manifest and verdicts with 20 figures, under as many names, in memory where the
system has a file system for that. Every manifest is read, hashed and compared with its seal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from tests.unit.evidence.runs import manifest, verdicts

from gnomon.harness.evidence import index
from gnomon.harness.evidence.atomic import sha256_of, write_json
from gnomon.harness.evidence.provenance import build_record
from gnomon.harness.evidence.store import Store

FIGURES = 20
MANIFEST_BYTES = 24_000  # what the quickstart leaves
MEMORY = Path("/dev/shm")


def fill(root: Path, count: int) -> None:
    """Write sealed runs that differ in their names."""
    verdict_data = verdicts().model_dump(mode="json")
    check = verdict_data["performance"]["checks"][0]
    check["figures"] = check["figures"] * FIGURES
    content = json.dumps(verdict_data).encode()
    data = manifest().model_dump(mode="json")
    data["recipe"] |= {"padding": "x" * (MANIFEST_BYTES - len(json.dumps(data)))}
    data["artifacts"] = {
        "verdicts.json": {"sha256": sha256_of(content), "bytes": len(content)},
    }
    for i in range(count):
        path = root / f"20260101T000000Z-x-{i:06}"
        path.mkdir(parents=True)
        text = json.dumps({**data, "run_id": path.name}).encode()
        (path / "manifest.json").write_bytes(text)
        (path / "verdicts.json").write_bytes(content)
        seal = f"{hashlib.sha256(text).hexdigest()}  manifest.json\n"
        (path / "manifest.sha256").write_text(seal)


@contextmanager
def timed(into: dict[str, Any], name: str) -> Iterator[None]:
    """Wall and CPU seconds of a block."""
    wall, cpu = time.monotonic(), time.process_time()
    yield
    into[f"{name}_s"] = round(time.monotonic() - wall, 2)
    into[f"{name}_cpu_s"] = round(time.process_time() - cpu, 2)


def measure(count: int) -> dict[str, Any]:
    """Figures of one store."""
    told: dict[str, Any] = {"runs": count, "figures": count * FIGURES}
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        store = Store(Path(folder) / "runs")
        fill(store.root, count)
        with timed(told, "rebuild"):
            rows = index.rows(store)
        assert {row.state for row in rows} == {"complete"}
        assert len(rows) == count
        with timed(told, "nothing_changed"):
            index.rows(store)
        with index.opened(store) as database:
            (figures,) = database.execute("SELECT count(*) FROM figures").fetchone() or (0,)
        assert figures == told["figures"]
    told["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return told


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path("evidence/store.json"))
    asked = parser.parse_args()
    build = build_record()
    record = {
        "command": f"python -m benchmarks.store --runs {asked.runs} --out {asked.out}",
        "commit": build.commit,
        "source_differs_from_commit": build.dirty,
        "machine": f"x86_64, {psutil.cpu_count()} cores, busy with other work",
        **measure(asked.runs),
    }
    write_json(asked.out, record)
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
