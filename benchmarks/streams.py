"""Streams as clients read them, well-behaved or not, over bare sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_SMALL_BUFFER = 4096  # bytes; a stalled reader's window closes soon
HANG_S = 180.0
"""A stream hangs if no event of it comes for so long, the first one too: 200 share a core or two,
most wait for blocks and some are evicted, and still each must move."""


class Manner(StrEnum):
    """How a client reads."""

    READ = "read"  # as fast as it can, to the end
    ABORT = "abort"  # leaves after a few events
    STALL = "stall"  # stops reading for seconds, then reads on
    STALL_AND_ABORT = "stall and abort"  # stops reading, then leaves
    SLOW = "slow"  # pauses after every event
    UNREAD = "unread"  # leaves before the answer begins


@dataclass
class Told:
    """What came of one stream.

    Attributes:
        status: of the HTTP answer; None if the client left before.
        finished: the stream ended as it should.
        error: what the server said went wrong.
        longest_wait_s: for an event, the first one too; without the client's own pauses.
    """

    status: int | None = None
    finished: bool = False
    error: str | None = None
    events: int = 0
    longest_wait_s: float = 0.0
    text: str = ""
    usage: tuple[int, int] | None = None
    finish_reason: str | None = None
    bad_characters: int = 0
    problems: list[str] = field(default_factory=list)


async def tell(
    address: tuple[str, int], path: str, body: dict[str, Any], manner: Manner, rng: random.Random
) -> Told:
    """Ask for one stream and read it in a manner.

    Args:
        address: host and port of the server.
        path: of the endpoint.
        body: of the request; a stream with usage.
        manner: how to read.
        rng: decides when to stall or leave.

    Raises:
        TimeoutError: nothing came for ``HANG_S``.
    """
    told = Told()
    reader, writer = await _open(address, manner)
    try:
        await _write(writer, address, path, body)
        if manner is Manner.UNREAD:
            await asyncio.sleep(rng.uniform(0, 1))
            return told
        await _read(reader, told, manner, rng)
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return told


async def _read(
    reader: asyncio.StreamReader, told: Told, manner: Manner, rng: random.Random
) -> None:
    start = time.monotonic()
    async with asyncio.timeout(HANG_S):
        told.status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
    odd = rng.randint(1, 12)
    async with contextlib.aclosing(_events(reader)) as events:
        while (payload := await _next(events)) is not None:
            told.longest_wait_s = max(told.longest_wait_s, time.monotonic() - start)
            told.events += 1
            _take(told, payload)
            if told.events == odd:
                if manner in (Manner.STALL, Manner.STALL_AND_ABORT):
                    await asyncio.sleep(rng.uniform(1, 5))
                if manner in (Manner.ABORT, Manner.STALL_AND_ABORT):
                    return
            if manner is Manner.SLOW:
                await asyncio.sleep(rng.uniform(0.01, 0.1))
            start = time.monotonic()


async def _next(events: AsyncGenerator[bytes, None]) -> bytes | None:
    """The next event, None at the end; a server that sends none for too long is hung."""
    async with asyncio.timeout(HANG_S):
        return await anext(events, None)


def _take(told: Told, payload: bytes) -> None:
    if payload == b"[DONE]":
        told.finished = told.error is None
        return
    told.bad_characters += payload.count("\ufffd".encode())
    event = json.loads(payload)
    if event.get("error"):
        told.error = str(event["error"])
    for choice in event.get("choices", ()):
        delta = choice.get("delta", choice)
        told.text += delta.get("content") or delta.get("text") or ""
        told.finish_reason = choice.get("finish_reason") or told.finish_reason
    kind = event.get("type", "")
    if kind == "response.output_text.delta":
        told.text += event["delta"]
    if kind in ("response.completed", "response.incomplete"):
        told.finished = told.error is None
        told.finish_reason = "length" if event["response"]["status"] == "incomplete" else "stop"
        event = event["response"]
    usage = event.get("usage")
    if usage:
        if told.usage is not None:
            told.problems.append("usage came twice")
        read = usage.get("prompt_tokens", usage.get("input_tokens"))
        written = usage.get("completion_tokens", usage.get("output_tokens"))
        told.usage = (read, written)
        if usage["total_tokens"] != read + written:
            told.problems.append("total_tokens is not the sum")


async def _events(reader: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
    """The data of every event; of an answer that is no stream, its body."""
    rest = b""
    while True:
        size = await reader.readline()
        length = int(size, 16) if size.strip() else 0
        if not length:
            break
        rest += await reader.readexactly(length)
        await reader.readexactly(2)
        *whole, rest = rest.split(b"\n\n")
        for event in whole:
            for line in event.split(b"\n"):
                if line.startswith(b"data: "):
                    yield line[6:]


async def _open(
    address: tuple[str, int], manner: Manner
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    stalls = manner in (Manner.STALL, Manner.STALL_AND_ABORT, Manner.SLOW, Manner.UNREAD)
    sock = socket.socket()
    sock.setblocking(False)
    if stalls:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return await asyncio.open_connection(sock=sock, limit=_SMALL_BUFFER if stalls else 1 << 16)


async def _write(
    writer: asyncio.StreamWriter, address: tuple[str, int], path: str, body: dict[str, Any]
) -> None:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {address[0]}:{address[1]}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n"
        "connection: close\r\n\r\n"
    )
    writer.write(head.encode() + content)
    await writer.drain()
