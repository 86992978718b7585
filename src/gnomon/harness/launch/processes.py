"""Finding and ending everything that a program left behind, by more than its process id."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

MARK_VARIABLE = "GNOMON_RUN_MARK"


@dataclass(frozen=True)
class Remnant:
    """A process that is still there.

    Attributes:
        pid: its id.
        command: its command line, shortened.
    """

    pid: int
    command: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.command})"


def members(group: int, mark: str) -> list[psutil.Process]:
    """Live processes of a process group or session, and those that inherited its mark.

    A program may leave its group (setsid, a daemon), but it takes its environment along: the mark
    is a variable with a value unique to one start. Zombies do not count: they hold nothing, and
    their parent, which may be the machine's init, has to collect them.

    Args:
        group: process group and session id of the first process.
        mark: value of `MARK_VARIABLE` given to it.
    """
    found = []
    own = os.getpid()
    for process in psutil.process_iter():
        if process.pid == own:
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            if _belongs(process, group, mark):
                found.append(process)
    return found


def _belongs(process: psutil.Process, group: int, mark: str) -> bool:
    with contextlib.suppress(OSError):
        if os.getpgid(process.pid) == group or os.getsid(process.pid) == group:
            return True
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get(MARK_VARIABLE) == mark
    return False


def send(processes: Iterable[psutil.Process], signum: signal.Signals) -> None:
    """Signal processes by identity: psutil refuses a pid that now belongs to another program."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signum)


def wait_gone(group: int, mark: str, timeout_s: float) -> list[psutil.Process]:
    """Wait until no member is left; returns those that still are."""
    end = time.monotonic() + timeout_s
    while True:
        left = members(group, mark)
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


def describe(process: psutil.Process) -> Remnant:
    """A process in a few words, whatever may still be read of it."""
    command = "?"
    with contextlib.suppress(psutil.Error):
        command = " ".join(process.cmdline())[:120] or process.name()
    return Remnant(process.pid, command)
