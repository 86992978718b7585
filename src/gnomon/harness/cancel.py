"""One way to stop a run, whoever asks first: the user, a signal, or the death of the server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from gnomon.harness.errors import RunCancelled

T = TypeVar("T")


class Cause(StrEnum):
    """Why a run was stopped."""

    INTERRUPTED = "interrupted"
    SERVER_DIED = "server died"


class CancelToken:
    """A cancel event that remembers the first cause; safe from signal handlers and threads.

    Attributes:
        event: set once; clients poll it and end their processes.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self._cause: Cause | None = None
        self._reason = ""

    @property
    def cause(self) -> Cause | None:
        """The first cause, or None while the run goes on."""
        return self._cause

    @property
    def reason(self) -> str:
        """The first reason given."""
        return self._reason

    def cancel(self, cause: Cause, reason: str) -> None:
        """Stop the run; later calls change nothing.

        No lock: a signal handler may interrupt the thread that would hold it. The cause is
        published before the event, so whoever sees the event also sees the cause.
        """
        if self._cause is None:
            self._reason = reason
            self._cause = cause
        self.event.set()

    def check(self) -> None:
        """Raise when cancelled.

        Raises:
            RunCancelled: with the first reason.
        """
        if self.event.is_set():
            raise RunCancelled(self._reason)


def call_until_cancelled(call: Callable[[], T], cancel: CancelToken, deadline_s: float) -> T:
    """Run a blocking call in a thread, so that a cancel or a deadline ends the wait for it.

    The thread is a daemon and the call should carry its own time-outs: it is abandoned, not
    killed.

    Raises:
        RunCancelled: the token was set first.
        TimeoutError: the call did not return within ``deadline_s`` seconds.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # handed over to the waiting thread, whatever it is
            failure.append(error)
        finally:
            done.set()

    threading.Thread(target=work, daemon=True, name="gnomon-call").start()
    waited = 0.0
    while not done.wait(0.05):
        cancel.check()
        waited += 0.05
        if waited >= deadline_s:
            raise TimeoutError(f"no answer within {deadline_s:.0f} s")
    if failure:
        raise failure[0]
    return outcome[0]
