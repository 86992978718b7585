"""One HTTP connection: uvicorn's, with bounds on how slowly a client may speak and listen."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import sys
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from gnomon.engine.serve.errors import ApiError
from gnomon.engine.serve.ids import new_id

ABORT = "abort"
"""Member of a request's ASGI state: closes its connection at once, whatever is still unsent."""

HEAD_BYTES = 64 * 2**10
"""Longest request line and headers."""


@dataclass(frozen=True)
class ConnectionBounds:
    """Bounds on connections.

    Attributes:
        head_s: how long the head of a request may take to come, the first on a connection counted
            from its opening.
        flush_s: how long what is unsent at the end of a connection may stay unread.
        most: connections open at a time; more are closed at once.
    """

    head_s: float
    flush_s: float
    most: int


def bounded(bounds: ConnectionBounds) -> type[asyncio.Protocol]:
    """The protocol to give to uvicorn."""

    class Bounded(BoundedConnection):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(bounds, *args, **kwargs)

    return Bounded


class BoundedConnection(H11Protocol):
    """A connection that ends when its client is too slow; errors have the API's shape."""

    def __init__(
        self,
        bounds: ConnectionBounds,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, ABORT: self._abort}, _loop)
        self._bounds = bounds
        self._head_timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None
        self._asked = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        if len(self.connections) > self._bounds.most:
            transport.abort()
            return
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._stop_watching()
        if self._end_timer is not None:
            self._end_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something has come."""
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        """An answer is out, as far as the client has read it."""
        super().on_response_complete()
        self._watch_head()
        self._end_soon_if_closing()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for a long time."""
        super().timeout_keep_alive_handler()
        self._end_soon_if_closing()

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: a request to change the protocol is answered as if it had not asked."""

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP; called while the parser's error is handled."""
        found = sys.exc_info()[1]
        hint = getattr(found, "error_status_hint", 400)
        if hint == 431:
            told = f"The request's head is longer than {HEAD_BYTES} bytes."
            self._refuse(ApiError(431, told, code="head_too_large"))
        else:
            self._refuse(ApiError(400, f"The request is not valid HTTP: {found}.", code="bad_http"))

    def _refuse(self, error: ApiError) -> None:
        """Answer outside of any request, and close."""
        self._stop_watching()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # what the application says now has nowhere to go
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.is_closing():
            body = json.dumps(error.body()).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
                ("x-request-id", new_id("req_")),
            ]
            reason = STATUS_PHRASES[error.status]
            for event in (
                h11.Response(status_code=error.status, headers=headers, reason=reason),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._end_soon_if_closing()

    def _watch_head(self) -> None:
        """Start or stop the timer of a request's head, as there is one under way or not."""
        answering = self.cycle is not None and not self.cycle.response_complete
        self._asked = self._asked or self.cycle is not None
        begun = bool(self.conn.trailing_data[0])
        if answering or self.transport.is_closing() or (self._asked and not begun):
            self._stop_watching()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self._bounds.head_s, self._head_is_late)

    def _stop_watching(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        told = f"The head of a request did not come within {self._bounds.head_s:g} s."
        self._refuse(ApiError(408, told, code="head_timeout"))

    def _end_soon_if_closing(self) -> None:
        """Closing waits until the client has read what is unsent, which it may never do."""
        if self.transport.is_closing() and self._end_timer is None:
            self._end_timer = self.loop.call_later(self._bounds.flush_s, self._abort)

    def _abort(self) -> None:
        """Reset the connection: the kernel drops what is unsent too."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):  # it is gone already
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
