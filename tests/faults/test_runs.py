"""What goes wrong in a run is noticed, named and tidied up, and its evidence is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from gnomon.harness.evidence.manifest import RunState

WITHOUT_LOAD = {"scenario": None}


def stage_names(run: Any) -> list[str]:
    return [stage.name for stage in run.manifest.stages]


def descendants(run: Any) -> list[psutil.Process]:
    return psutil.Process(run.process.pid).children(recursive=True)


SHORT_OF_READY = [
    pytest.param(
        {"server": ["--startup-s", "3600"]},
        {"deadlines__ready_s": 1.5},
        "launch",
        ["not ready within 1.5 s", "/health answers 503", "deadlines.ready_s"],
        id="never-ready",
    ),
    pytest.param(
        {"command": [sys.executable, "-c", "print('boom: out of memory'); raise SystemExit(7)"]},
        {},
        "launch",
        ["exit code 7", "boom: out of memory"],
        id="dies-at-startup",
    ),
    pytest.param(
        {"command": ["/no/such/server"]}, {}, "launch", ["cannot start"], id="no-such-program"
    ),
    pytest.param(
        {"facts": {"kv_cache_dtype": "bf16"}},
        {},
        "attest",
        ["attested: kv_cache_dtype", "asked 'mxfp4'", "served 'bf16'"],
        id="another-layout-is-served",
    ),
    pytest.param(
        {"facts": {"max_num_seqs": None, "enable_prefix_caching": 1}},
        {},
        "attest",
        ["max_num_seqs", "does not report it", "enable_prefix_caching", "served 1"],
        id="a-setting-cannot-be-read-back",
    ),
    pytest.param(
        {"server": ["--fault", "500"]},
        {},
        "attest",
        ["streamed completion: status 500", "tool-call round trip: status 500"],
        id="requests-fail",
    ),
    pytest.param(
        {"server": ["--fault", "cut"]},
        {},
        "attest",
        ["streamed completion"],
        id="streams-are-cut",
    ),
    pytest.param(
        {"server": ["--fault", "hang"]},
        {"deadlines__attest_s": 1.0},
        "attest",
        ["no answer within", "deadlines.attest_s is 1"],
        id="requests-hang",
    ),
    pytest.param(
        {"server": ["--answers", "broken-json"]},
        {},
        "attest",
        ["arguments are not JSON"],
        id="tool-calls-are-broken",
    ),
]


@pytest.mark.parametrize(("script", "changes", "stage", "words"), SHORT_OF_READY)
def test_a_server_that_is_not_what_was_asked_gets_no_load(
    script: dict[str, Any],
    changes: dict[str, Any],
    stage: str,
    words: list[str],
    write_recipe: Callable[..., Path],
    start_run: Callable[..., Any],
) -> None:
    run = start_run(write_recipe(**WITHOUT_LOAD, **changes), **script)
    code, printed = run.finish()
    manifest = run.manifest
    assert code == 1, printed
    assert manifest.state is RunState.FAILED
    assert manifest.failed_stage == stage
    for word in words:
        assert word in manifest.reason
        assert word in printed
    assert (run.folder.path / "report.html").is_file()
    assert manifest.launch is not None
    if manifest.launch.pid is not None:
        assert "teardown" in stage_names(run)
        assert run.nothing_is_left([])


@pytest.mark.parametrize(
    "signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name
)
def test_a_signal_while_the_server_starts_leaves_an_interrupted_manifest(
    signum: signal.Signals, write_recipe: Callable[..., Path], start_run: Callable[..., Any]
) -> None:
    run = start_run(write_recipe(**WITHOUT_LOAD), server=["--startup-s", "3600"])
    run.wait_until(lambda m: m.launch is not None and m.launch.pid, "the server's pid")
    children = descendants(run)
    os.kill(run.process.pid, signum)
    os.kill(run.process.pid, signum)  # an impatient second one changes nothing
    code, printed = run.finish()
    assert code == 128 + signum
    manifest = run.manifest
    assert manifest.state is RunState.INTERRUPTED
    assert manifest.failed_stage == "launch"
    assert manifest.ended is not None
    assert "interrupted at stage launch" in printed
    assert run.nothing_is_left(children)


@pytest.mark.clients
def test_ctrl_c_in_the_middle_of_the_replay_stops_the_client_too(
    write_recipe: Callable[..., Path], start_run: Callable[..., Any]
) -> None:
    run = start_run(write_recipe(), plan="real", server=["--itl-ms", "400"])
    run.wait_for_stage("replay")
    while len(descendants(run)) < 4:  # the server, the client and their guardians
        time.sleep(0.1)
    children = descendants(run)
    os.kill(run.process.pid, signal.SIGINT)
    code, _ = run.finish()
    assert code == 130
    assert run.manifest.state is RunState.INTERRUPTED
    assert run.manifest.failed_stage == "replay"
    assert run.nothing_is_left(children)


@pytest.mark.clients
def test_a_run_that_is_killed_leaves_neither_server_nor_client(
    write_recipe: Callable[..., Path], start_run: Callable[..., Any]
) -> None:
    """SIGKILL leaves the run no word to say; its guardians tidy up."""
    run = start_run(write_recipe(), plan="real", server=["--itl-ms", "400"])
    run.wait_for_stage("replay")
    while len(descendants(run)) < 4:  # the server, the client and their two guardians
        time.sleep(0.1)
    children = descendants(run)
    os.kill(run.process.pid, signal.SIGKILL)
    run.finish()
    end = time.monotonic() + 30
    while not run.nothing_is_left(children) and time.monotonic() < end:
        time.sleep(0.1)
    assert run.nothing_is_left(children)
    assert run.manifest.state is RunState.RUNNING


def test_a_reader_that_goes_away_does_not_end_the_run(
    write_recipe: Callable[..., Path], start_run: Callable[..., Any]
) -> None:
    """As in `gnomon run ... | head -1`: the evidence is worth more than its commentary."""
    run = start_run(write_recipe(**WITHOUT_LOAD))
    run.process.stdout.readline()
    run.process.stdout.close()
    run.process.stdout = None
    code, printed = run.finish()
    assert code == 0, printed
    assert run.manifest.state is RunState.COMPLETE
    assert "Traceback" not in printed
    assert run.nothing_is_left([])


def test_an_engine_that_dies_behind_a_living_server_is_noticed(
    write_recipe: Callable[..., Path], start_run: Callable[..., Any]
) -> None:
    run = start_run(write_recipe(**WITHOUT_LOAD), server=["--fault", "exit"])
    code, printed = run.finish()
    assert code == 1, printed
    assert run.manifest.failed_stage == "attest"
    assert "ended with exit code 3" in run.manifest.reason


def test_a_run_that_goes_well_leaves_a_whole_folder(
    write_recipe: Callable[..., Path], start_run: Callable[..., Any]
) -> None:
    run = start_run(write_recipe(**WITHOUT_LOAD))
    code, printed = run.finish()
    assert code == 0, printed
    manifest = run.manifest
    assert manifest.state is RunState.COMPLETE
    assert str(run.folder.path / "report.html") in printed
    assert not run.folder.faults()
    assert manifest.content_key is not None
    assert run.nothing_is_left([])


def test_a_refused_recipe_starts_nothing_and_leaves_no_folder(
    write_recipe: Callable[..., Path], tmp_path: Path
) -> None:
    """The real command with the real planner: schema and memory problems come together."""
    recipe = write_recipe(
        kv__layout__value="int4",
        engine__flags__kv_cache_memory_bytes__value=4096,
        surprise=1,
    )
    out = tmp_path / "runs"
    done = subprocess.run(
        [sys.executable, "-m", "gnomon", "run", str(recipe), "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert not out.exists()
    assert "3 problems, nothing was started" in done.stderr
    for words in ("unknown key 'surprise'", "unknown layout 'int4'", "cache blocks"):
        assert words in done.stderr
    assert "Traceback" not in done.stderr
