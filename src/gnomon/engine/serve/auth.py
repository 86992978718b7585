"""The API key: asked for on ``/v1/``, compared in constant time."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gnomon.engine.serve.errors import ApiError
from gnomon.engine.serve.sse import error_response


class ApiKey:
    """ASGI middleware that answers 401 without the right ``Authorization: Bearer`` header."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("authorization")
        problem = self._problem(given)
        if problem is None:
            await self._app(scope, receive, send)
        else:
            error = ApiError(401, problem, code="invalid_api_key")
            await error_response(error)(scope, receive, send)

    def _problem(self, given: str | None) -> str | None:
        if not given:
            return "No API key was given; send it as 'Authorization: Bearer KEY'."
        scheme, _, key = given.partition(" ")
        right = hmac.compare_digest(key.strip().encode(), self._key)
        return None if scheme.lower() == "bearer" and right else "The API key is wrong."
