"""Bounds on what a client may send, and on how slowly it may read."""

from __future__ import annotations

import asyncio
import logging

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gnomon.engine.serve.connection import ABORT
from gnomon.engine.serve.errors import ApiError, ClientStalled
from gnomon.engine.serve.sse import error_response

log = logging.getLogger(__name__)

_CLOSE = {"connection": "close"}
_PACE = 2**20  # bytes of a body that must come in each time-out, on average


class BodyLimit:
    """ASGI middleware that takes the whole body in before anything parses it.

    A longer body than allowed is a 413. One of which nothing comes for ``timeout_s``, or that comes
    in drops, more slowly than 1 MiB in that time, is a 408.
    """

    def __init__(self, app: ASGIApp, most: int, timeout_s: float) -> None:
        self._app = app
        self._most = most
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take the whole body in, then pass the request on."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._body(scope, receive)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return first.pop() if first else await receive()

        await self._app(scope, replay, send)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        told = Headers(scope=scope).get("content-length", "")
        if told.isdigit() and int(told[:20]) > self._most:
            raise self._too_long()
        body = bytearray()
        loop = asyncio.get_running_loop()
        start = loop.time()
        while True:
            slowest = start + self._timeout_s * (1 + len(body) / _PACE)
            try:
                async with asyncio.timeout_at(min(slowest, loop.time() + self._timeout_s)):
                    message = await receive()
            except TimeoutError:
                raise ApiError(
                    408,
                    f"Nothing of the body came for {self._timeout_s:g} s.",
                    code="body_timeout",
                    headers=_CLOSE,
                ) from None
            if message["type"] != "http.request":
                return bytes(body)
            body += message.get("body", b"")
            if len(body) > self._most:
                raise self._too_long()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_long(self) -> ApiError:
        return ApiError(
            413,
            f"The body is longer than {self._most} bytes, the most this server takes.",
            code="body_too_large",
            headers=_CLOSE,
        )


class HeadAsGet:
    """ASGI middleware: HEAD is answered wherever GET is, as GET; the HTTP server drops the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


class SlowReaders:
    """ASGI middleware that ends answers nobody reads.

    The HTTP server buffers some 64 KiB of an answer, then stops to take more until the client
    reads. Meanwhile the engine goes on and its tokens wait, at most ``max_tokens`` of them. After
    the time-out the generation is aborted and the connection closed.
    """

    def __init__(self, app: ASGIApp, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, watching its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stalled = False

        async def watched(message: Message) -> None:
            nonlocal stalled
            if stalled:
                raise ClientStalled
            try:
                async with asyncio.timeout(self._timeout_s):
                    await send(message)
            except TimeoutError:
                stalled = True
                raise ClientStalled from None

        try:
            await self._app(scope, receive, watched)
        except ClientStalled:
            log.warning(
                "%s: the client read nothing for %g s; its request is aborted",
                scope["path"],
                self._timeout_s,
            )
            if ABORT in scope.get("state", {}):
                scope["state"][ABORT]()  # closing would wait until the client has read the rest
