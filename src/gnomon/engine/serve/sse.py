"""Server-sent events, and answers that end when their client leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gnomon.engine.serve.errors import ApiError, ClientStalled, internal

log = logging.getLogger(__name__)

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
_CLIENT_CLOSED = 499  # nginx's number; nobody is there to read it


_LINE_ENDS = tuple((chr(code).encode(), b"\\u%04x" % code) for code in (0x85, 0x2028, 0x2029))
"""Not line ends of event streams, but Python clients that split with str.splitlines cut there."""


def data(value: Any) -> bytes:
    """One event with only a data line."""
    text = msgspec.json.encode(value)
    for character, escaped in _LINE_ENDS:
        text = text.replace(character, escaped)
    return b"data: " + text + b"\n\n"


def event(value: dict[str, Any]) -> bytes:
    """One event named after its type."""
    return b"event: " + str(value["type"]).encode() + b"\n" + data(value)


class EventStream(Response):
    """Streams events from a generator.

    The status is decided by the first event: an error before it is an ordinary error response.
    Later, ``on_error`` turns it into events. When the client leaves, the generator is closed.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        on_error: Callable[[ApiError], list[bytes]],
    ) -> None:
        self._events = events
        self._on_error = on_error
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await _unless_gone(self._answer(scope, receive, send), receive)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        async with contextlib.aclosing(self._events):
            try:
                async for chunk in self._events:
                    if not started:
                        await send(_HEAD)
                        started = True
                    await send(_body(chunk))
            except ClientStalled:
                raise
            except Exception as error:
                problem = error if isinstance(error, ApiError) else internal()
                if problem is not error:
                    log.exception("a stream failed")
                if not started:
                    await error_response(problem)(scope, receive, send)
                    return
                for chunk in self._on_error(problem):
                    await send(_body(chunk))
        if not started:  # nothing was left to tell
            await send(_HEAD)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


_HEAD = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ],
}


def _body(chunk: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": chunk, "more_body": True}


def error_lines(error: ApiError) -> list[bytes]:
    """How a chat or completion stream ends when it fails on the way."""
    return [data(error.body()), DONE]


def error_response(error: ApiError) -> Response:
    """An error as a whole response; in ASCII, so that whatever it quotes can be sent."""
    return _ErrorResponse(error)


class _ErrorResponse(Response):
    """OpenAI's shape; on Anthropic's paths with the ``type`` that its clients look for."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(
            json.dumps(error.body()),
            status_code=error.status,
            headers=error.headers,
            media_type="application/json",
        )
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith("/v1/messages"):
            self.body = json.dumps({"type": "error", **self._error.body()}).encode()
            self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


async def json_unless_gone(request: Request, work: Coroutine[Any, Any, dict[str, Any]]) -> Response:
    """Answer with JSON; when the client leaves first, the work is cancelled."""
    found: dict[str, Any] | None = await _unless_gone(work, request.receive)
    if found is None:
        return Response(status_code=_CLIENT_CLOSED)
    return Response(msgspec.json.encode(found), media_type="application/json")


async def _unless_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """Run to the end, or until the client is gone; None then."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_gone(receive))
    tasks: tuple[Awaitable[Any], ...] = (task, watcher)
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
