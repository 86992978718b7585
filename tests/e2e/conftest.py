"""One real run of the quickstart recipe, shared by the tests that look at it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from gnomon.harness.evidence.folder import RunFolder

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class FinishedRun:
    """Exit status, everything printed, and the folder of a run."""

    code: int
    printed: str
    folder: RunFolder


@pytest.fixture(scope="session")
def quickstart_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """`gnomon run recipes/quickstart.yaml` as a user types it."""
    out = tmp_path_factory.mktemp("runs")
    done = subprocess.run(
        [sys.executable, "-m", "gnomon", "run", "recipes/quickstart.yaml", "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    (folder,) = out.iterdir()
    return FinishedRun(done.returncode, done.stdout + done.stderr, RunFolder(folder))
