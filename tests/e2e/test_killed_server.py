"""Our own server killed in the middle of a replay: whichever of its processes it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gnomon.harness.errors import RunFolderError
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.manifest import Manifest, RunState
from gnomon.harness.launch.ports import is_listening

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]


def manifest_of(out: Path) -> Manifest | None:
    for path in out.glob("*/manifest.json"):
        try:
            return RunFolder(path.parent).load_manifest()
        except RunFolderError:
            return None
    return None


@pytest.mark.parametrize("victim", ["server", "engine core"])
def test_killing_it_ends_the_run_with_stage_and_reason_and_leaves_nothing(
    victim: str, tmp_path: Path
) -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "gnomon", "run", "recipes/quickstart.yaml", "--out", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        requests = tmp_path.glob("*/replay/aiperf/**/profile_export.jsonl")
        while not any(path.stat().st_size for path in requests):
            assert run.poll() is None, run.communicate()[0]
            time.sleep(0.1)
            requests = tmp_path.glob("*/replay/aiperf/**/profile_export.jsonl")
        manifest = manifest_of(tmp_path)
        assert manifest is not None
        assert manifest.launch is not None
        assert manifest.launch.pid is not None
        everything = psutil.Process(run.pid).children(recursive=True)
        server = psutil.Process(manifest.launch.pid)
        core = max(server.children(recursive=True), key=lambda p: p.memory_info().rss)
        os.kill(server.pid if victim == "server" else core.pid, signal.SIGKILL)
        # A run that did not notice would go on until the replay's own deadline.
        printed = run.communicate(timeout=60)[0]
    finally:
        if run.poll() is None:
            for process in psutil.Process(run.pid).children(recursive=True):
                process.kill()
            run.kill()
    manifest = manifest_of(tmp_path)
    assert manifest is not None
    assert manifest.launch is not None
    assert run.returncode == 1, printed
    assert (manifest.state, manifest.failed_stage) == (RunState.FAILED, "replay")
    assert "server" in manifest.reason
    assert "failed at stage replay" in printed
    assert {"replay.json", "server/log.txt", "verdicts.json"} <= set(manifest.artifacts)
    left = [p for p in everything if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert left == []
    port = int(manifest.launch.argv[manifest.launch.argv.index("--port") + 1])
    assert not is_listening("127.0.0.1", port)
