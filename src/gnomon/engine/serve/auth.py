"""API keys: asked for by all but the server's own pages, compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gnomon.engine.serve.errors import ApiError
from gnomon.engine.serve.sse import error_response

_GUARDED = ("/v1/", "/debug/", "/tokenize", "/detokenize")


class ApiKey:
    """ASGI middleware that answers 401 without one of the keys.

    It comes as ``Authorization: Bearer KEY`` or, as Anthropic's clients send it, ``x-api-key``.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or not scope["path"].startswith(_GUARDED):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("authorization")
        if given is None and "x-api-key" in headers:
            given = f"Bearer {headers['x-api-key']}"
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
        sent = key.strip().encode()
        right = sum(hmac.compare_digest(sent, known) for known in self._keys)  # all, always
        return None if scheme.lower() == "bearer" and right else "The API key is wrong."
