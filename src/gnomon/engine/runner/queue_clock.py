"""How long requests wait for their first step."""

from __future__ import annotations

import time
from collections.abc import Iterable


class QueueClock:
    """Times from a request's arrival in the core to its first step; told once a request."""

    def __init__(self) -> None:
        self._arrived: dict[str, float] = {}
        self._waited: dict[str, float] = {}

    def arrive(self, request_id: str) -> None:
        """A request was queued."""
        self._arrived[request_id] = time.perf_counter()

    def begin(self, request_ids: Iterable[str]) -> None:
        """These requests are in the step that starts now."""
        now = time.perf_counter()
        for request_id in request_ids:
            arrived = self._arrived.pop(request_id, None)
            if arrived is not None:
                self._waited[request_id] = now - arrived

    def take(self, request_id: str) -> float | None:
        """Seconds the request waited, the first time it is asked for; then None."""
        return self._waited.pop(request_id, None)

    def forget(self, request_id: str) -> None:
        """The request is gone."""
        self._arrived.pop(request_id, None)
        self._waited.pop(request_id, None)
