"""Small real programs, run to their end, their deadline or a cancel."""

import os
import sys
import threading
from pathlib import Path

import psutil
import pytest

from gnomon.harness.clients.process import Ended, run_to_end, tail

FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
away = subprocess.Popen(
    [sys.executable, "-c", "import signal, time\\nsignal.signal(15, signal.SIG_IGN)\\n"
     "print('up', flush=True)\\ntime.sleep(600)"],
    start_new_session=True, stdout=subprocess.PIPE)
away.stdout.readline()
print(child.pid, away.pid, flush=True)
{then}
"""


def run(code: str, tmp_path: Path, **options: object) -> Ended:
    arguments = {"deadline_s": 60.0, **options}
    return run_to_end(
        [sys.executable, "-c", code],
        env=dict(os.environ),
        cwd=tmp_path,
        log=tmp_path / "log",
        **arguments,  # type: ignore[arg-type]
    )


def pids(tmp_path: Path) -> list[int]:
    log = tmp_path / "log"
    return [int(word) for word in log.read_text().split()] if log.exists() else []


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_exit_status_and_output_are_kept(tmp_path: Path) -> None:
    ended = run("print('hello'); raise SystemExit(3)", tmp_path)
    assert (ended.how, ended.code, ended.ok) == ("exited", 3, False)
    assert tail(tmp_path / "log") == "hello"


def test_a_program_that_ends_well_is_ok(tmp_path: Path) -> None:
    assert run("pass", tmp_path).ok


def test_standard_input_is_empty(tmp_path: Path) -> None:
    assert run("import sys; assert sys.stdin.read() == ''", tmp_path).ok


@pytest.mark.parametrize("then", ["time.sleep(600)", "pass", "os._exit(7)"])
def test_nothing_is_left_however_it_ends(tmp_path: Path, then: str) -> None:
    """A child in the group and one that left it and ignores SIGTERM are both gone."""
    cancel = threading.Event()

    def watch() -> None:
        if len(pids(tmp_path)) == 2:
            cancel.set()

    run(FAMILY.format(then=then), tmp_path, cancel=cancel, watch=watch)
    assert len(pids(tmp_path)) == 2
    assert not any(alive(pid) for pid in pids(tmp_path))


def test_a_cancel_is_told_from_a_deadline(tmp_path: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    assert run("import time; time.sleep(600)", tmp_path, cancel=cancel).how == "cancelled"
    assert run("import time; time.sleep(600)", tmp_path, deadline_s=0.3).how == "deadline"


def test_an_exception_of_the_watcher_ends_the_program_too(tmp_path: Path) -> None:
    def watch() -> None:
        if len(pids(tmp_path)) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(FAMILY.format(then="time.sleep(600)"), tmp_path, watch=watch)
    assert not any(alive(pid) for pid in pids(tmp_path))
