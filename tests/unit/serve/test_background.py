"""The log of a response's events: read from any place, bounded, and woken at the end."""

from __future__ import annotations

import asyncio

import pytest

from gnomon.engine.serve import background
from gnomon.engine.serve.background import EventLog
from gnomon.engine.serve.errors import ApiError


def test_readers_at_any_place_get_everything_behind_it() -> None:
    async def main() -> None:
        log = EventLog()
        log.add([b"a", b"b"])

        async def read(after: int) -> bytes:
            return b"".join([chunk async for chunk in log.read(after)])

        readers = [asyncio.create_task(read(after)) for after in (-1, 0, 1, 2, 9)]
        await asyncio.sleep(0)
        log.add([b"c"])
        await asyncio.sleep(0)
        log.add([b"d"])
        log.end()
        assert await asyncio.gather(*readers) == [b"abcd", b"bcd", b"cd", b"d", b""]
        assert await read(-1) == b"abcd"

    asyncio.run(main())


def test_the_oldest_events_go_and_a_reader_that_wants_them_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "_MOST_BYTES", 10)

    async def main() -> None:
        log = EventLog()
        for _ in range(7):
            log.add([b"four"])
        log.end()
        assert log.nbytes == 8
        assert [chunk async for chunk in log.read(4)] == [b"fourfour"]
        with pytest.raises(ApiError, match="before number 5") as caught:
            await anext(log.read(3))
        assert caught.value.param == "starting_after"

    asyncio.run(main())
