"""One server process: started in its own group, watched, and proven gone at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gnomon.harness.adapters.protocol import Command
from gnomon.harness.cancel import CancelToken, Cause
from gnomon.harness.errors import StageFailed
from gnomon.harness.launch import processes
from gnomon.harness.launch.guardian import Guardian
from gnomon.harness.launch.ports import is_listening
from gnomon.harness.launch.processes import MARK_VARIABLE, Remnant
from gnomon.harness.nouns import ServerAddress

LOG_TAIL_LINES = 12
_KILL_WAIT_S = 10.0


@dataclass(frozen=True)
class Teardown:
    """How the server ended, and the proof that nothing of it is left.

    Attributes:
        exit_code: of the first process, negative for a signal; None if it never ended.
        asked: whether it was still running when it was asked to end.
        killed: processes that did not end within the grace period and were killed.
        remnants: processes still there after that; empty is the proof.
        port_open: whether anything still accepts connections on the port.
        duration_s: of the whole teardown.
    """

    exit_code: int | None
    asked: bool
    killed: tuple[Remnant, ...]
    remnants: tuple[Remnant, ...]
    port_open: bool
    duration_s: float

    @property
    def clean(self) -> bool:
        """Whether nothing is left, however it had to be ended."""
        return not self.remnants and not self.port_open

    @property
    def graceful(self) -> bool:
        """Whether it ended within the grace period when asked with SIGTERM.

        Some servers exit with 0, others let the signal end them after they have tidied up.
        """
        ended_well = self.exit_code in (0, -signal.SIGTERM)
        return self.asked and ended_well and not self.killed


class Server:
    """A supervised server process.

    Attributes:
        command: what was started.
        address: where it listens.
        log: file with its standard output and error.
    """

    def __init__(
        self, command: Command, address: ServerAddress, log: Path, cancel: CancelToken
    ) -> None:
        self.command = command
        self.address = address
        self.log = log
        self._cancel = cancel
        self._mark = uuid.uuid4().hex
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._guardian: Guardian | None = None
        self._watcher: threading.Thread | None = None
        self._log_file: BinaryIO | None = None
        self.started_at = 0.0

    @property
    def pid(self) -> int | None:
        """Of the first process, which is also its group and session; None before the start."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process in its own session and watch it from a thread.

        Its own session keeps a Ctrl-C in the terminal from reaching it: the harness decides when
        and how it ends. If it dies while it is needed, the watcher sets the cancel token; if the
        harness is killed, its guardian ends the server.

        Raises:
            StageFailed: the program cannot be started at all.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_file = self.log.open("ab")
        try:
            self._process = subprocess.Popen(
                self.command.argv,
                env={**os.environ, **self.command.env, MARK_VARIABLE: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=self._log_file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._log_file.close()
            raise StageFailed(
                f"cannot start {self.command.argv[0]}: {error.strerror}. Is it installed?"
            ) from None
        self._guardian = Guardian(self._process.pid, self._mark)
        self.started_at = time.monotonic()
        self._watcher = threading.Thread(target=self._watch, daemon=True, name="gnomon-watcher")
        self._watcher.start()

    def _watch(self) -> None:
        assert self._process is not None
        code = self._process.wait()
        if not self._stopping.is_set():
            self._cancel.cancel(Cause.SERVER_DIED, self._obituary(code))

    def _obituary(self, code: int) -> str:
        lived = time.monotonic() - self.started_at
        last = "\n".join(f"    {line}" for line in log_tail(self.log))
        return (
            f"the server process {self.pid} ended with {describe_exit(code)} "
            f"{lived:.1f} s after its start; its last log lines ({self.log}):\n{last or '    none'}"
        )

    def stop(self, grace_s: float) -> Teardown:
        """End the server and everything it started, and prove it.

        The first process is asked with SIGTERM and gets ``grace_s`` to end its own children; what
        is left of its group, its session or its mark is then killed. Safe to call twice.

        Args:
            grace_s: how long a graceful end may take.
        """
        self._stopping.set()
        begin = time.monotonic()
        process = self._process
        if process is None:
            return Teardown(None, False, (), (), False, 0.0)
        asked = process.poll() is None
        if asked:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
        # Orphans of a server that died get a moment to notice it by themselves.
        patience = min(2.0, grace_s) if process.poll() is not None else 0.0
        left = processes.wait_gone(process.pid, self._mark, patience)
        killed = tuple(processes.describe(member) for member in left)
        if left:
            processes.send(left, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_WAIT_S)
            left = processes.wait_gone(process.pid, self._mark, _KILL_WAIT_S)
        if self._guardian is not None:
            self._guardian.dismiss()
        if self._watcher is not None:
            self._watcher.join(timeout=1.0)
        if self._log_file is not None:
            self._log_file.close()
        return Teardown(
            exit_code=process.poll(),
            asked=asked,
            killed=killed,
            remnants=tuple(processes.describe(member) for member in left),
            port_open=is_listening(self.address.host, self.address.port),
            duration_s=time.monotonic() - begin,
        )


def log_tail(path: Path, lines: int = LOG_TAIL_LINES) -> list[str]:
    """Last non-empty lines of a log that may be large, unreadable bytes replaced."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return list(deque((line for line in text.splitlines() if line.strip()), maxlen=lines))


def describe_exit(code: int) -> str:
    """An exit code in words: ``signal 9 (SIGKILL)`` or ``exit code 3``."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"signal {-code}"
