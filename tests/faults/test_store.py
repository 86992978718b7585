"""Stores that processes write at the same time, or are killed while they write."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.evidence.runs import sealed_run

from gnomon.harness.evidence import index
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.remote import export_run
from gnomon.harness.evidence.store import Store

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "fakes"
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
MEMORY = Path("/dev/shm")


@pytest.fixture
def fast() -> Iterator[Path]:
    """A folder in memory where there is one: what a kill leaves does not depend on the disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("change", "nothing"),
    [
        ("seal", "no run, and sealed afterwards"),
        ("import", "no run"),
        ("amend", "no amendment"),
    ],
)
def test_a_change_killed_at_any_line_is_made_whole_or_not_at_all(
    change: str, nothing: str, fast: Path
) -> None:
    program = [sys.executable, str(FAKES / "killed_at_every_line.py"), change, str(fast)]
    done = subprocess.run(program, env=ENV, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    left = json.loads(done.stdout)
    assert left.keys() == {nothing, "whole"}
    assert sum(left.values()) > 40


def test_processes_that_write_one_store_at_a_time_lose_nothing(fast: Path) -> None:
    packed = fast / "x.run.tar"
    shared = sealed_run(fast / "elsewhere")
    export_run(shared, str(packed))
    store = Store(fast / "runs")
    program = [sys.executable, str(FAKES / "store_writer.py"), str(store.root), "6", str(packed)]
    writers = [
        subprocess.Popen(
            program, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    printed = [writer.communicate(timeout=120) for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 4, printed
    said: list[dict[str, Any]] = [json.loads(out) for out, _ in printed]
    made = {name for each in said for name in each["made"]}
    removed = {name for each in said for name in each["removed"]}
    assert (len(made), len(removed)) == (24, 12)
    kept = {run.path.name: run for run in store.runs()}
    assert kept.keys() == made - removed | {shared.path.name}
    assert not any(run.faults() for run in kept.values())
    rows = {row.run_id: row for row in index.rows(store)}
    assert rows.keys() == made | {shared.path.name}
    assert {name for name, row in rows.items() if row.gone} == removed
    assert list(store.garbage(unsealed=True)) == []


def test_a_run_whose_process_was_killed_is_sealed_as_far_as_it_went(
    start_run: Any, write_recipe: Any, tmp_path: Path
) -> None:
    run = start_run(write_recipe(scenario=None), server=["--startup-s", "3600"])
    run.wait_for_stage("launch")
    run.wait_until(lambda m: m.launch is not None and m.launch.pid, "a server")
    refused = gnomon("runs", "seal", run.folder.path.name, "--store", str(run.out))
    assert refused.returncode == 2
    assert "by a process that is alive" in refused.stderr
    server = run.manifest.launch.pid
    run.process.kill()
    run.process.communicate()
    done = gnomon("runs", "seal", run.folder.path.name, "--store", str(run.out))
    assert done.returncode == 0, done.stderr
    with contextlib.suppress(ProcessLookupError):  # its guardian may have been as fast
        os.kill(server, signal.SIGKILL)
    assert not run.folder.faults()
    assert (run.manifest.state, run.manifest.failed_stage) == ("interrupted", "launch")
    assert "its process ended before the run did" in run.manifest.reason


def gnomon(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gnomon", *arguments],
        env=ENV,
        capture_output=True,
        text=True,
        check=False,
    )


def reusing(recipe: Path, out: Path, **script: Any) -> tuple[int, str, RunFolder]:
    """`gnomon run --reuse` against the scripted server, and the folder it made."""
    program = [sys.executable, str(FAKES / "run_with_fake_engine.py"), json.dumps(script)]
    before = set(out.glob("2*")) if out.exists() else set()
    done = subprocess.run(
        [*program, str(recipe), str(out), "--reuse"],
        env=ENV,
        capture_output=True,
        text=True,
        check=False,
    )
    (made,) = set(out.glob("2*")) - before
    return done.returncode, done.stdout + done.stderr, RunFolder(made)


def test_a_proven_key_is_not_measured_again_and_any_other_is(
    write_recipe: Any, tmp_path: Path
) -> None:
    recipe, out = write_recipe(scenario=None), tmp_path / "runs"
    code, printed, first = reusing(recipe, out)
    assert code == 0, printed
    assert "no valid run has the key" in printed
    text = yaml.safe_load(recipe.read_text())
    recipe.write_text(yaml.safe_dump({**text, "name": "renamed", "description": "Another."}))

    code, printed, second = reusing(recipe, out)
    assert code == 0, printed
    assert f"already proven by {first.path.name}: nothing is measured again" in printed
    manifest, original = second.load_manifest(), first.load_manifest()
    assert manifest.reused is not None
    assert manifest.reused.run_id == first.path.name
    assert manifest.content_key == original.content_key
    assert not second.faults()
    page = (second.path / "report.html").read_text()
    assert f"Reused: {first.path.name} measured the same content key" in page
    assert f"{first.path.name} has the same content key and is proven valid" in page
    verdicts = second.load_verdicts()
    assert verdicts is not None
    assert [each.state for each in verdicts.all()] == ["passed", "not_run", "not_run"]

    code, printed, third = reusing(recipe, out, facts={"model_fingerprint": "e" * 64})
    assert code == 0, printed
    assert third.load_manifest().reused is None
    explained = gnomon(
        "runs", "explain", first.path.name, third.path.name, "--store", str(out), "--json"
    )
    assert explained.returncode == 1
    paths = [each["path"] for each in json.loads(explained.stdout)["differences"]]
    assert "model_fingerprint" in paths
