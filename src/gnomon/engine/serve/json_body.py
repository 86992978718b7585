"""Reading JSON as the standards mean it: in UTF-8, with every name once, and not without end."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from gnomon.engine.serve.errors import bad_request

_MOST_CONTAINERS = 500_000
_MOST_VALUES = 4_000_000
_STRING = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)  # in one pass, ended or not


class JsonRoute(APIRoute):
    """A route whose body is read here."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, given requests that read their body strictly."""
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(_Strict(request.scope, request.receive))

        return strictly


class _Strict(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = read_body(await self.body())
        return self._json


def read_body(body: bytes) -> Any:
    """The value of a body.

    Raises:
        ApiError: it is not UTF-8, has a member twice, or has too many values: reading some millions
            takes seconds, in which nobody else is served.
        json.JSONDecodeError: it is not JSON.
    """
    if not _is_short(body) and not _is_short(_STRING.sub(b"", body)):
        raise bad_request(
            f"The body has more than {_MOST_CONTAINERS} objects and lists, or more than "
            f"{_MOST_VALUES} values, the most this server reads.",
            None,
            "invalid_json",
        )
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise bad_request("The body is not UTF-8.", None, "invalid_json") from None
    return json.loads(text, object_pairs_hook=_once)


def _is_short(body: bytes) -> bool:
    containers = body.count(b"[") + body.count(b"{")
    return containers <= _MOST_CONTAINERS and body.count(b",") <= _MOST_VALUES


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name in members if counts[name] > 1)
        raise bad_request(f"An object has the member {twice!a} twice.", None, "invalid_json")
    return members
