"""``GET`` and ``DELETE /v1/responses/ID``, its input items, and cancelling it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gnomon.engine.serve.background import reading_failed
from gnomon.engine.serve.errors import bad_request, unsupported
from gnomon.engine.serve.gate import key_digest
from gnomon.engine.serve.served import Served
from gnomon.engine.serve.sse import EventStream

_MOST_ITEMS = 100
_ITEMS = 20
_MOST_DIGITS = 18


def retrieve(served: Served, response_id: str, request: Request) -> Response:
    """A response, finished or not; one made in the background also as its events."""
    query = _query(request, "stream", "starting_after", "include", "include_obfuscation")
    _require_no_include(query)
    streams = _flag(query, "stream")
    after = _integer(query, "starting_after", 0)
    owner = key_digest(request.headers)
    running = served.store.running_one(response_id, owner)
    events = running.events if running else served.store.get(response_id, owner).events
    if streams:
        if events is None:
            raise bad_request(
                f"The response {response_id!r} was not made in the background, so its events are "
                "not kept; retrieve it without 'stream'.",
                "stream",
            )
        return EventStream(events.read(-1 if after is None else after), reading_failed)
    if after is not None:
        raise bad_request("'starting_after' goes with stream=true.", "starting_after")
    if running:
        return JSONResponse(running.response.snapshot())
    return JSONResponse(served.store.get(response_id, owner).response)


def input_items(served: Served, response_id: str, request: Request) -> JSONResponse:
    """A page of the items that a response answers."""
    query = _query(request, "limit", "order", "after", "include")
    _require_no_include(query)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise bad_request(f"order is {order!r}; it must be asc or desc.", "order")
    limit = _integer(query, "limit", 1)
    if limit is not None and limit > _MOST_ITEMS:
        raise bad_request(f"limit is {limit}; at most {_MOST_ITEMS} are given.", "limit")
    owner = key_digest(request.headers)
    running = served.store.running_one(response_id, owner)
    items: Sequence[dict[str, Any]] = (
        running.response.input_items if running else served.store.get(response_id, owner).inputs
    )
    items = items if order == "asc" else items[::-1]
    if "after" in query:
        at = next((n for n, item in enumerate(items) if item["id"] == query["after"]), None)
        if at is None:
            raise bad_request(f"after is {query['after']!r}, no item of this response.", "after")
        items = items[at + 1 :]
    page = items[: limit or _ITEMS]
    return JSONResponse(
        {
            "object": "list",
            "data": list(page),
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > len(page),
        }
    )


def delete(served: Served, response_id: str, request: Request) -> JSONResponse:
    """Forget a response."""
    _query(request)
    served.store.delete(response_id, key_digest(request.headers))
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


def cancel(served: Served, response_id: str, request: Request) -> JSONResponse:
    """End a response that runs; its own request is answered with what there is.

    One that was cancelled before is returned as it is.
    """
    _query(request)
    owner = key_digest(request.headers)
    running = served.store.running_one(response_id, owner)
    if running is not None:
        running.response.cancel()
        told = running.response.snapshot()
        for item in told["output"]:
            if item.get("status") == "in_progress":
                item["status"] = "incomplete"
        return JSONResponse({**told, "status": "cancelled"})
    found = served.store.get(response_id, owner).response
    if found["status"] != "cancelled":
        raise bad_request(
            f"The response {response_id!r} is finished and cannot be cancelled.",
            None,
            "response_finished",
        )
    return JSONResponse(found)


def _query(request: Request, *known: str) -> dict[str, str]:
    """The query's parameters; ``include[]`` is another spelling of ``include``.

    Raises:
        ApiError: one is unknown, or comes twice.
    """
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        plain = name.removesuffix("[]")
        if plain not in known:
            raise bad_request(f"Unrecognized query parameter: {name}", name, "unknown_parameter")
        if plain in found:
            raise bad_request(f"{name!r} is given twice.", plain)
        found[plain] = value
    return found


def _require_no_include(query: dict[str, str]) -> None:
    if query.get("include"):
        raise unsupported("include", "'include' is not supported here; leave it out.")


def _flag(query: dict[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in ("true", "false"):
        raise bad_request(f"{name} is {value!r}; it must be true or false.", name)
    return value == "true"


def _integer(query: dict[str, str], name: str, least: int) -> int | None:
    value = query.get(name)
    if value is None:
        return None
    digits = value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS
    if not digits or int(value) < least:
        raise bad_request(f"{name} is {value!r}; it must be a whole number from {least}.", name)
    return int(value)
