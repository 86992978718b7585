"""Runs as real processes, with a scripted server in the engine's place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.manifest import Manifest
from gnomon.harness.launch import processes
from gnomon.harness.launch.ports import is_listening

ROOT = Path(__file__).parents[2]
DRIVER = ROOT / "tests" / "fakes" / "run_with_fake_engine.py"
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
PATIENCE_S = 90.0


@dataclass
class StartedRun:
    """A `gnomon run` under way."""

    process: subprocess.Popen[str]
    out: Path

    @property
    def folder(self) -> RunFolder:
        (path,) = self.out.iterdir()
        return RunFolder(path)

    @property
    def manifest(self) -> Manifest:
        return self.folder.load_manifest()

    def wait_until(self, holds: Callable[[Manifest], Any], what: str) -> Any:
        """Poll the manifest on disk, which is right at any moment."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if any(self.out.glob("*/manifest.json")):
                found = holds(self.manifest)
                if found:
                    return found
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)
        raise AssertionError(f"not within {PATIENCE_S} s: {what}")

    def wait_for_stage(self, name: str) -> None:
        self.wait_until(lambda m: any(stage.name == name for stage in m.stages), name)

    def finish(self) -> tuple[int, str]:
        """Exit status and everything printed."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, (out or "") + err

    def nothing_is_left(self, before: list[psutil.Process]) -> bool:
        """Whether the server's group, its port and every child seen before are gone."""
        launch = self.manifest.launch
        assert launch is not None
        assert launch.pid is not None
        port = int(launch.argv[launch.argv.index("--port") + 1]) if "--port" in launch.argv else 0
        alive = [p for p in before if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        return (
            not processes.members(launch.pid, "no such mark")
            and not alive
            and not (port and is_listening("127.0.0.1", port))
        )


@pytest.fixture
def write_recipe(tmp_path: Path) -> Callable[..., Path]:
    """The quickstart recipe without evaluations, changed at dotted paths."""

    def write(**changes: Any) -> Path:
        recipe = yaml.safe_load(QUICKSTART.read_text())
        recipe["evals"] = []
        for dotted, value in changes.items():
            target, *rest = dotted.split("__")
            node = recipe
            while rest:
                node = node[target]
                target, *rest = rest
            node[target] = value
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(recipe))
        return path

    return write


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., StartedRun]]:
    """Starts runs, and kills whatever of them a failed test leaves behind."""
    started: list[StartedRun] = []

    def start(recipe: Path, **script: Any) -> StartedRun:
        out = tmp_path / "runs"
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps(script), str(recipe), str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
            start_new_session=True,
        )
        run = StartedRun(process, out)
        started.append(run)
        return run

    yield start
    for run in started:
        if run.process.poll() is None:
            children = psutil.Process(run.process.pid).children(recursive=True)
            processes.send([psutil.Process(run.process.pid), *children], processes.signal.SIGKILL)
            run.process.communicate()
