"""``GET`` and ``DELETE /v1/responses/ID``, its input items, and cancelling it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse

from gnomon.engine.serve.errors import bad_request
from gnomon.engine.serve.gate import key_digest
from gnomon.engine.serve.served import Served


def retrieve(served: Served, response_id: str, request: Request) -> JSONResponse:
    """A response, finished or not."""
    owner = key_digest(request.headers)
    running = served.store.running_one(response_id, owner)
    if running is not None:
        return JSONResponse(running.snapshot())
    return JSONResponse(served.store.get(response_id, owner).response)


def delete(served: Served, response_id: str, request: Request) -> JSONResponse:
    """Forget a response."""
    served.store.delete(response_id, key_digest(request.headers))
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


def cancel(served: Served, response_id: str, request: Request) -> JSONResponse:
    """End a response that runs; its own request is answered with what there is."""
    owner = key_digest(request.headers)
    running = served.store.running_one(response_id, owner)
    if running is None:
        served.store.get(response_id, owner)
        raise bad_request(f"The response {response_id!r} is finished and cannot be cancelled.")
    running.cancel()
    return JSONResponse({**running.snapshot(), "status": "cancelled"})
