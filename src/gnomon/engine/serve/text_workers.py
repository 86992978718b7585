"""Threads in which prompts are rendered and tokenised, so that no prompt holds up the streams."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_MOST = 8


class TextWorkers:
    """A few threads; who finds them busy waits, and may leave while waiting."""

    def __init__(self) -> None:
        threads = max(2, min(_MOST, len(os.sched_getaffinity(0))))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="text")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns; log lines of the thread are the request's too."""
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._pool, lambda: context.run(function, *args, **kwargs)
        )
