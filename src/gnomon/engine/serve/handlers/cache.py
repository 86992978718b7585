"""Emptying the cache, to prove that what comes back comes from where it is said to."""

from __future__ import annotations

from starlette.responses import JSONResponse

from gnomon.engine.serve.served import Served, require_ready


async def flush(served: Served, *, host: bool) -> JSONResponse:
    """Forget every block that no request holds; with a host tier their content stays there.

    Args:
        served: what is served.
        host: forget what host memory holds too.

    Returns:
        Blocks by state from right after, and what host memory holds.
    """
    require_ready(served.engine)
    stats = await served.engine.flush_cache(host=host)
    return JSONResponse(
        {
            "blocks_total": stats.blocks_total,
            "blocks_used": stats.blocks_used,
            "blocks_cached": stats.blocks_cached,
            "host_blocks_used": stats.host_blocks_used,
        }
    )
