"""Waiting for a server to become healthy, and noticing when it stops being so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import httpx

from gnomon.harness.cancel import CancelToken, Cause
from gnomon.harness.errors import ServerNotReady
from gnomon.harness.launch.supervisor import Server, log_tail

_POLL_S = 0.1
_UNHEALTHY_ANSWERS = 3


def wait_until_healthy(
    server: Server,
    health_path: str,
    deadline_s: float,
    cancel: CancelToken,
    progress: Callable[[str], None],
) -> float:
    """Poll the health endpoint until it answers 200.

    Returns:
        Seconds from the server's start to its first healthy answer.

    Raises:
        ServerNotReady: the deadline passed; the message carries the last log lines.
        RunCancelled: interrupted, or the server's process ended first.
    """
    url = f"{server.address.origin}{health_path}"
    seen = "it does not accept connections"
    with httpx.Client(timeout=2.0, trust_env=False) as client:
        while True:
            cancel.check()
            waited = time.monotonic() - server.started_at
            try:
                answer = client.get(url)
                if answer.status_code == 200:
                    return waited
                seen = f"{health_path} answers {answer.status_code}"
            except httpx.HTTPError as error:
                seen = f"{health_path}: {type(error).__name__}"
            if waited > deadline_s:
                last = "\n".join(f"    {line}" for line in log_tail(server.log))
                raise ServerNotReady(
                    f"the server was not ready within {deadline_s:g} s ({seen}). Raise "
                    f"deadlines.ready_s if it needs longer; its last log lines ({server.log}):\n"
                    f"{last or '    none'}"
                )
            progress(f"waiting for {health_path}: {seen}")
            cancel.event.wait(_POLL_S)


class HealthWatch:
    """Cancels the run when a living server declares itself unhealthy.

    A process can outlive the engine behind it. Only explicit refusals count: a server that is busy
    may answer late, and lateness is for the load client to measure.
    """

    def __init__(self, server: Server, health_path: str, cancel: CancelToken) -> None:
        self._url = f"{server.address.origin}{health_path}"
        self._log = server.log
        self._cancel = cancel
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="gnomon-health")

    def __enter__(self) -> HealthWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=1.0)

    def _watch(self) -> None:
        refusals = 0
        with httpx.Client(timeout=10.0, trust_env=False) as client:
            while not self._stop.wait(1.0):
                try:
                    status = client.get(self._url).status_code
                except httpx.HTTPError:
                    continue  # late or closing: the process watcher and the client will say
                refusals = refusals + 1 if status >= 500 else 0
                if refusals >= _UNHEALTHY_ANSWERS and not self._stop.is_set():
                    last = "\n".join(f"    {line}" for line in log_tail(self._log))
                    self._cancel.cancel(
                        Cause.SERVER_DIED,
                        f"the server declared itself unhealthy: {self._url} answered {status} "
                        f"{refusals} times in a row; its last log lines ({self._log}):\n{last}",
                    )
                    return
