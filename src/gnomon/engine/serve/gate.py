"""Who may generate now: requests in all and per key, and none once the server drains."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gnomon.engine.serve.errors import ApiError
from gnomon.engine.serve.sse import error_response

GENERATING = frozenset({"/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/messages"})
_RETRY = {"retry-after": "1"}


class Gate:
    """Counts requests from their headers to the end of their answers.

    Args:
        most: requests open at a time, running and queued.
        most_per_key: the same for one API key; None is no limit.
    """

    def __init__(self, most: int, most_per_key: int | None) -> None:
        self._most = most
        self._most_per_key = most_per_key
        self._open: Counter[str] = Counter()
        self._empty = asyncio.Event()
        self._empty.set()
        self.draining = False

    @property
    def open(self) -> int:
        """Requests open now."""
        return self._open.total()

    @property
    def open_per_key(self) -> dict[str, int]:
        """Requests open now, by a digest of their key."""
        return dict(self._open)

    def enter(self, key: str) -> None:
        """Let a request in.

        Raises:
            ApiError: the server drains, or too many are open.
        """
        self.refuse_if_draining()
        if self.open >= self._most:
            raise _busy(f"{self.open} requests are open, the most this server takes")
        if self._most_per_key is not None and self._open[key] >= self._most_per_key:
            raise _busy(f"{self._open[key]} requests with this API key are open, the most it may")
        self._open[key] += 1
        self._empty.clear()

    def leave(self, key: str) -> None:
        """A request is over."""
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]
        if not self._open:
            self._empty.set()

    def refuse_if_draining(self) -> None:
        """Check that the server takes new requests.

        Raises:
            ApiError: it is shutting down.
        """
        if self.draining:
            raise ApiError(
                503,
                "The server is shutting down and takes no new requests.",
                code="shutting_down",
                headers=_RETRY,
            )

    async def emptied(self) -> None:
        """Wait until no request is open."""
        await self._empty.wait()


def _busy(what: str) -> ApiError:
    message = f"{what}; try again later."
    return ApiError(429, message, code="too_many_requests", headers=_RETRY)


class Gatekeeper:
    """ASGI middleware that lets generating requests through a gate."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] not in GENERATING:
            await self._app(scope, receive, send)
            return
        key = key_digest(Headers(scope=scope))
        try:
            self._gate.enter(key)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._gate.leave(key)


def key_digest(headers: Headers) -> str:
    """A short name of the request's API key that does not give it away."""
    _, _, bearer = headers.get("authorization", "").partition(" ")
    key = bearer.strip() or headers.get("x-api-key", "").strip()
    return hashlib.sha256(key.encode()).hexdigest()[:12] if key else "none"
