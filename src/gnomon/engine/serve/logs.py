"""Request ids in headers and logs."""

from __future__ import annotations

import logging
import re
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gnomon.engine.log_format import request_id as current_id
from gnomon.engine.serve.errors import internal
from gnomon.engine.serve.ids import new_id
from gnomon.engine.serve.sse import error_response

log = logging.getLogger(__name__)

HEADER = "x-request-id"
_ANTHROPIC = "request-id"  # where Anthropic's clients look for it
_USABLE = re.compile(r"[A-Za-z0-9_.:\-]{1,128}")


class RequestIds:
    """ASGI middleware: every request has an id, its client's if it sent a usable one.

    The id is in the answer's headers and in every log line of the request; requests under ``/v1/``
    are logged when they end. A request that fails in a way nobody foresaw is a 500, and logged.
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
        token = current_id.set(request_id)
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
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if not status:  # else the connection is closed, so that the answer looks cut
                await error_response(internal())(scope, receive, marked)
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
            current_id.reset(token)
