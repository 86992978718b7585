"""Responses that are generated whether or not anybody reads them, and can be read again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable

from gnomon.engine.serve.errors import ApiError, bad_request, internal
from gnomon.engine.serve.generation import Finished
from gnomon.engine.serve.parsers.base import Event
from gnomon.engine.serve.response_object import Numbered, ResponseObject
from gnomon.engine.serve.sse import event

log = logging.getLogger(__name__)

Steps = AsyncGenerator[list[Event] | Finished, None]

_MOST_BYTES = 16 * 2**20


class EventLog:
    """The events of one response: the newest 16 MiB of them, for readers at any place."""

    def __init__(self) -> None:
        self._events: deque[bytes] = deque()
        self._first = 0  # sequence number of the oldest that is kept
        self.nbytes = 0
        self._ended = False
        self._news = asyncio.Event()

    def add(self, events: Numbered) -> None:
        """Add the next events and wake the readers."""
        for one in events:
            self._events.append(one)
            self.nbytes += len(one)
        while self.nbytes > _MOST_BYTES:
            self.nbytes -= len(self._events.popleft())
            self._first += 1
        self._wake()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._wake()

    async def read(self, after: int) -> AsyncGenerator[bytes, None]:
        """Events with a sequence number above ``after``, to the end of the response.

        Raises:
            ApiError: the next event is no longer kept.
        """
        at = after + 1
        while True:
            news = self._news
            if at < self._first:
                raise bad_request(
                    f"The events before number {self._first} are no longer kept; retrieve the "
                    "response without 'stream'.",
                    "starting_after",
                )
            end = self._first + len(self._events)
            if at < end:
                yield b"".join(self._events[n - self._first] for n in range(at, end))
                at = end
            elif self._ended:
                return
            else:
                await news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def reading_failed(error: ApiError) -> Numbered:
    """How the stream of one reader ends when it fails; the response itself goes on."""
    return [event({"type": "error", **error.body()})]


async def run_in_background(
    response: ResponseObject, events: EventLog, steps: Steps, end: Callable[[], None]
) -> None:
    """Generate a response to its end, whatever that is; never raises but for being cancelled.

    Args:
        response: that grows.
        events: where its events go; has the opening ones.
        steps: its generation.
        end: called when it is over, before its readers hear of the end.
    """
    last: Numbered = []
    try:
        async with contextlib.aclosing(steps) as items:
            async for item in items:
                told = response.take(item)
                if response.ended:
                    last = told
                else:
                    events.add(told)
    except ApiError as error:
        last = response.fail(error)
    except Exception:
        log.exception("a response in the background failed")
        last = response.fail(internal())
    finally:
        end()
        events.add(last)
        events.end()
