"""A small process that ends what a harness started if the harness itself is killed.

A harness that gets SIGKILL can end nothing. Its guardian holds the other end of a pipe: when the
pipe closes without a farewell, the guardian kills the program it guards and all that carries its
mark. It works for any program, so engines need not cooperate.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys

from gnomon.harness.launch import processes

_FAREWELL = b"done"
_GRACE_S = 5.0


class Guardian:
    """The harness's end of the pipe.

    Args:
        group: process group and session id of the program to guard.
        mark: value of ``MARK_VARIABLE`` in its environment.
    """

    def __init__(self, group: int, mark: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(group), mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """Send it home: everything it guarded has ended. Safe to call twice."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(_FAREWELL)
                self._process.stdin.close()
        self._process.wait()


def guard(group: int, mark: str) -> None:
    """Wait for the farewell; without it, ask all members to end and kill those that do not."""
    if sys.stdin.buffer.read() == _FAREWELL:
        return
    for signum in (signal.SIGTERM, signal.SIGKILL):
        processes.send(processes.members(group, mark), signum)
        processes.wait_gone(group, mark, _GRACE_S)


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2])
