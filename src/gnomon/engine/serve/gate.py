"""Who may generate now: requests open and waiting, in all and per key, and none in a drain."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gnomon.engine.serve.errors import ApiError
from gnomon.engine.serve.sse import error_response

GENERATING = frozenset({"/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/messages"})
_RETRY = {"retry-after": "1"}


@dataclass(frozen=True)
class GateBounds:
    """How many requests are let in; None is no bound.

    Attributes:
        most: open at a time, running and waiting.
        per_key: the same for one API key.
        waiting: without a first token at a time.
        waiting_per_key: the same for one API key.
    """

    most: int
    per_key: int | None = None
    waiting: int | None = None
    waiting_per_key: int | None = None


class Ticket:
    """One request's place: it waits until its first token, and is open until it leaves."""

    def __init__(self, gate: Gate, key: str) -> None:
        self._gate = gate
        self.key = key
        self.waits = True
        self.kept = False

    def begin(self) -> None:
        """Its first token has come."""
        if self.waits:
            self.waits = False
            self._gate._take(self._gate._waiting, self.key)

    def keep(self) -> None:
        """It goes on behind its answer; whoever keeps it calls :meth:`leave`."""
        self.kept = True

    def leave(self) -> None:
        """It is over."""
        self.begin()
        self._gate._leave(self.key)


_ticket: ContextVar[Ticket | None] = ContextVar("ticket", default=None)


def current_ticket() -> Ticket | None:
    """The ticket of the request that is being answered; None outside of one."""
    return _ticket.get()


class Gate:
    """Counts requests from their headers to the end of their answers."""

    def __init__(self, bounds: GateBounds) -> None:
        self._bounds = bounds
        self._open: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._empty = asyncio.Event()
        self._empty.set()
        self.draining = False

    @property
    def open(self) -> int:
        """Requests open now."""
        return self._open.total()

    @property
    def waiting(self) -> int:
        """Of these, requests without a first token."""
        return self._waiting.total()

    @property
    def open_per_key(self) -> dict[str, int]:
        """Requests open now, by a digest of their key."""
        return dict(self._open)

    def enter(self, key: str) -> Ticket:
        """Let a request in.

        Raises:
            ApiError: the server drains, or too many are open or waiting.
        """
        self.refuse_if_draining()
        bounds, mine = self._bounds, "with this API key"
        for number, most, what in (
            (self.open, bounds.most, "requests are open, the most this server takes"),
            (self._open[key], bounds.per_key, f"requests {mine} are open, the most it may have"),
            (self.waiting, bounds.waiting, "requests wait for a first token, the most that may"),
            (self._waiting[key], bounds.waiting_per_key,
             f"requests {mine} wait for a first token, the most that may"),
        ):  # fmt: skip
            if most is not None and number >= most:
                raise ApiError(
                    429,
                    f"{number} {what}; try again later.",
                    code="too_many_requests",
                    headers=_RETRY,
                )
        self._open[key] += 1
        self._waiting[key] += 1
        self._empty.clear()
        return Ticket(self, key)

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

    def _leave(self, key: str) -> None:
        self._take(self._open, key)
        if not self._open:
            self._empty.set()

    @staticmethod
    def _take(counter: Counter[str], key: str) -> None:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]


class Gatekeeper:
    """ASGI middleware that lets generating requests through a gate."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in GENERATING:
            await self._app(scope, receive, send)
            return
        try:
            ticket = self._gate.enter(key_digest(Headers(scope=scope)))
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        token = _ticket.set(ticket)
        try:
            await self._app(scope, receive, send)
        finally:
            _ticket.reset(token)
            if not ticket.kept:
                ticket.leave()


def key_digest(headers: Headers) -> str:
    """A short name of the request's API key that does not give it away."""
    _, _, bearer = headers.get("authorization", "").partition(" ")
    key = bearer.strip() or headers.get("x-api-key", "").strip()
    return hashlib.sha256(key.encode()).hexdigest()[:12] if key else "none"
