"""Generations that run at the same time and make up one answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from gnomon.engine.serve.accounts import Usage
from gnomon.engine.serve.generation import Finished
from gnomon.engine.serve.parsers.base import Event
from gnomon.engine.serve.served import Events

Told = tuple[int, list[Event] | Finished]


async def side_by_side(runs: Sequence[Events]) -> AsyncGenerator[Told, None]:
    """What each of the generations tells, as it comes, with its number.

    If one fails, its error is raised and all end; leaving the iteration early aborts all.
    """
    if len(runs) == 1:
        async with contextlib.aclosing(runs[0]) as items:
            async for item in items:
                yield 0, item
        return
    arrivals: asyncio.Queue[Told | Exception] = asyncio.Queue()
    pumps = [asyncio.ensure_future(_pump(at, run, arrivals)) for at, run in enumerate(runs)]
    left = len(runs)
    try:
        while left:
            arrival = await arrivals.get()
            if isinstance(arrival, Exception):
                raise arrival
            left -= isinstance(arrival[1], Finished)
            yield arrival
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(at: int, run: Events, arrivals: asyncio.Queue[Told | Exception]) -> None:
    try:
        async with contextlib.aclosing(run) as items:
            async for item in items:
                arrivals.put_nowait((at, item))
    except Exception as error:  # whatever it is, it is the answer's
        arrivals.put_nowait(error)


def total(usages: Sequence[Usage], choices: int) -> Usage:
    """Usage of an answer: every prompt once, and the tokens of all choices.

    Args:
        usages: of every generation, the choices of one prompt in a row.
        choices: of one prompt.
    """
    first = usages[::choices]
    return Usage(
        prompt=sum(u.prompt for u in first),
        cached=sum(u.cached for u in first),
        completion=sum(u.completion for u in usages),
        reasoning=sum(u.reasoning for u in usages),
    )
