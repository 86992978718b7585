"""What the server tells about itself: models, health, version, metrics, settings."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import JSONResponse, Response

import gnomon
from gnomon.engine.errors import EngineError
from gnomon.engine.serve.errors import ApiError
from gnomon.engine.serve.served import Served, require_ready


def health(served: Served) -> JSONResponse:
    """200 once a real forward has run, 503 before, while the server drains, and after."""
    require_ready(served.engine)
    served.gate.refuse_if_draining()
    return JSONResponse({"status": "ok"})


def version() -> JSONResponse:
    """Version of the server."""
    return JSONResponse({"engine": "gnomon", "version": gnomon.__version__})


def server_info(served: Served) -> JSONResponse:
    """Every effective setting."""
    require_ready(served.engine)
    return JSONResponse(served.info())


def models(served: Served) -> JSONResponse:
    """The names clients may use."""
    require_ready(served.engine)
    names = served.options.model_names
    return JSONResponse({"object": "list", "data": [_model(served, name) for name in names]})


def model(served: Served, name: str) -> JSONResponse:
    """One of the names clients may use."""
    return JSONResponse(_model(served, served.admit(name)))


def _model(served: Served, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": "gnomon",
        "root": served.options.model,
        "reasoning_format": served.options.reasoning_format.value,
        "max_model_len": served.engine.facts.max_model_len,
    }


async def debug_state(served: Served) -> JSONResponse:
    """Queue and blocks now, and who has requests open."""
    require_ready(served.engine)
    stats = msgspec.to_builtins(await served.engine.stats())
    stats.pop("type")  # the message's tag
    gate = served.gate
    return JSONResponse(
        {
            "engine": stats,
            "open_requests": gate.open,
            "waiting_requests": gate.waiting,
            "open_requests_per_key": gate.open_per_key,
            "draining": gate.draining,
        }
    )


async def metrics(served: Served) -> Response:
    """Prometheus' text format; without the core's part while there is no core."""
    stats = None
    if served.engine.is_ready:
        try:
            stats = await served.engine.stats()
        except (EngineError, ApiError):
            stats = None
    return Response(served.metrics.render(stats), media_type=served.metrics.content_type)
