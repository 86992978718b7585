"""Runs one client program to its end, its deadline or a cancel, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gnomon.harness.launch import processes
from gnomon.harness.launch.guardian import Guardian

Ending = Literal["exited", "cancelled", "deadline"]

_POLL_S = 0.1
_TERM_GRACE_S = 2.0
_KILL_WAIT_S = 5.0


@dataclass(frozen=True)
class Ended:
    """How a client program ended.

    Attributes:
        how: by itself, by the caller's cancel, or by its deadline.
        code: exit status, negative for a signal; only a program that exited by itself has one
            that means anything.
        wall_s: from start to end.
    """

    how: Ending
    code: int
    wall_s: float

    @property
    def ok(self) -> bool:
        """Whether it exited by itself with status 0."""
        return self.how == "exited" and self.code == 0


def run_to_end(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    deadline_s: float,
    cancel: threading.Event | None = None,
    watch: Callable[[], None] | None = None,
) -> Ended:
    """Run a program in its own process group until it ends or has to be ended.

    Whatever happens, an exception such as KeyboardInterrupt included, every process it started is
    gone afterwards, also those that left the group: first asked, two seconds later killed. Should
    this process itself be killed, a guardian does it.

    Args:
        argv: program and arguments; no shell.
        env: the whole environment.
        cwd: working directory.
        log: file for standard output and error, appended to.
        deadline_s: longest run in seconds.
        cancel: ends the program when set; looked at ten times a second.
        watch: called about ten times a second while it runs, for progress.
    """
    mark = uuid.uuid4().hex
    stop = cancel or threading.Event()
    started = time.monotonic()
    how: Ending = "exited"
    with log.open("ab") as sink:
        process = subprocess.Popen(
            list(argv),
            env={**env, processes.MARK_VARIABLE: mark},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        guardian = Guardian(process.pid, mark)
        try:
            while not _has_exited(process.pid):
                if stop.is_set():
                    how = "cancelled"
                    break
                if time.monotonic() - started > deadline_s:
                    how = "deadline"
                    break
                if watch is not None:
                    watch()
                stop.wait(_POLL_S)
        finally:
            _end_all(process, mark)
            guardian.dismiss()
    if watch is not None:
        watch()
    return Ended(how, process.returncode, time.monotonic() - started)


def _has_exited(pid: int) -> bool:
    """Whether a child ended, without collecting it: its group id cannot be reused meanwhile."""
    flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
    return os.waitid(os.P_PID, pid, flags) is not None


def _end_all(process: subprocess.Popen[bytes], mark: str) -> None:
    """End what is left of the program and of all it started, then collect it."""
    for signum, patience_s in (
        (signal.SIGTERM, _TERM_GRACE_S),
        (signal.SIGKILL, _KILL_WAIT_S),
    ):
        left = processes.members(process.pid, mark)
        if not left:
            break
        processes.send(left, signum)
        processes.wait_gone(process.pid, mark, patience_s)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_KILL_WAIT_S)


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, for the message of an error."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
