"""Request ids in headers and logs, and logs as JSON."""

from __future__ import annotations

import json
import logging
import re
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gnomon.engine.serve.ids import new_id

log = logging.getLogger(__name__)

HEADER = "x-request-id"
_ANTHROPIC = "request-id"  # where Anthropic's clients look for it
LogFormat = Literal["text", "json"]

_USABLE = re.compile(r"[A-Za-z0-9_.:\-]{1,128}")
_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


class RequestIds:
    """ASGI middleware: every request has an id, its client's if it sent a usable one.

    The id is in the answer's headers and in every log line of the request; requests under ``/v1/``
    are logged when they end.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if _USABLE.fullmatch(given) else new_id("req_")
        token = _request_id.set(request_id)
        start, status = time.perf_counter(), 0

        async def marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=[*message.get("headers", ())])
                headers[HEADER] = request_id
                if scope["path"].startswith("/v1/messages"):
                    headers[_ANTHROPIC] = request_id
                message = {**message, "headers": headers.raw}
            await send(message)

        try:
            await self._app(scope, receive, marked)
        finally:
            if scope["path"].startswith("/v1/"):
                took = time.perf_counter() - start
                fields = {"method": scope["method"], "path": scope["path"], "status": status,
                          "duration_s": round(took, 4)}  # fmt: skip
                log.info(
                    "%s %s %d in %.3f s",
                    scope["method"], scope["path"], status, took,
                    extra={"fields": fields},
                )  # fmt: skip
            _request_id.reset(token)


class _WithRequestId(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = _request_id.get()
        return True


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": getattr(record, "request_id", None),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: value for name, value in line.items() if value is not None})


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        request_id = getattr(record, "request_id", None)
        text = super().format(record)
        return f"{text} [{request_id}]" if request_id else text


def configure(form: LogFormat) -> None:
    """Send the program's log to standard error, in that format."""
    handler = logging.StreamHandler()
    handler.addFilter(_WithRequestId())
    handler.setFormatter(
        _Json() if form == "json" else _Plain("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
