"""``python -m benchmarks.soak``: many streams, many of them misused, and what is left afterwards.

Every client has its turn again and again until the time is up: it asks for a stream at one of the
three endpoints and reads it to the end, slowly, with a stall, or not to the end. Whatever it does,
nothing may be left afterwards, and every stream that ended must have counted exactly.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter as Tally
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.clients.servers import ServerProcess, gnomon_serve

from benchmarks.prompts import Counter
from benchmarks.streams import HANG_S, Manner, Told, tell
from benchmarks.vitals import Vitals, leaks, metrics, settled, vitals
from gnomon.engine.models.loader import resolve_model

_MANNERS = {
    Manner.READ: 55, Manner.ABORT: 15, Manner.STALL: 8, Manner.STALL_AND_ABORT: 7,
    Manner.SLOW: 10, Manner.UNREAD: 5,
}  # fmt: skip
_SEEDS = 3
_WARM_UP_S = 5
_CROWD = 100  # streams; so many do not fit into the blocks together
_FLAT_MIB = 48.0  # of resident memory, per process: allocators keep what they once had
_FLAGS = (
    "--kv-cache-dtype", "mxfp4", "--max-model-len", "2048", "--max-num-seqs", "200",
    "--num-blocks", "64",  # 200 streams need several times as many: they queue and are evicted
)  # fmt: skip
_TOPICS = (
    "Say hello to the world.", "Bücher für Åsa, 漢字 und 😀.", "Count to ten. " * 12,
    "What is a page, a block and a slot? " * 20, "Name three rivers.", "x",
)  # fmt: skip


@dataclass(frozen=True)
class Ask:
    """One request a client may make: path, body and the exact prompt length in tokens."""

    path: str
    body: dict[str, Any]
    prompt_tokens: int


@dataclass
class Record:
    """What came of all the streams."""

    streams: Tally[str] = field(default_factory=Tally)
    statuses: Tally[str] = field(default_factory=Tally)
    finished: int = 0
    events: int = 0
    tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    longest_wait_s: float = 0.0
    compared: int = 0
    differing: int = 0


def asks(counter: Counter) -> list[Ask]:
    """Every prompt at every endpoint."""
    found = []
    for topic in _TOPICS:
        messages = [{"role": "user", "content": topic}]
        length = counter.chat(messages)
        found.append(Ask("/v1/chat/completions", {"messages": messages}, length))
        found.append(Ask("/v1/responses", {"input": topic}, length))
        ids = counter.ids(topic)
        found.append(Ask("/v1/completions", {"prompt": ids}, len(ids)))
    return found


def _body(ask: Ask, rng: random.Random, most: int) -> tuple[dict[str, Any], int, int]:
    tokens = rng.choice((1, 8, 24, 48, most))
    seed = rng.randrange(_SEEDS)
    cap = "max_output_tokens" if ask.path == "/v1/responses" else "max_tokens"
    body = {"model": "nano", "stream": True, "seed": seed, "ignore_eos": True, cap: tokens}
    if ask.path != "/v1/responses":
        body["stream_options"] = {"include_usage": True}
    return {**body, **ask.body}, tokens, seed


def check(
    record: Record, ask: Ask, at: int, asked: tuple[int, int], manner: Manner, told: Told
) -> None:
    """Take one stream into the record, with everything that is wrong about it."""
    tokens, seed = asked
    record.statuses[str(told.status)] += 1
    record.events += told.events
    record.longest_wait_s = max(record.longest_wait_s, told.longest_wait_s)
    record.wrong += told.problems
    if told.bad_characters:
        record.wrong.append(f"{ask.path}: U+FFFD in a stream")
    if told.error is not None or told.status not in (None, 200):
        record.wrong.append(f"{ask.path}: {told.status} {told.error}")
    if not told.finished:
        if manner in (Manner.READ, Manner.STALL, Manner.SLOW) and told.error is None:
            record.wrong.append(f"{ask.path}: a stream was cut ({manner.value})")
        return
    record.finished += 1
    record.tokens += tokens
    if told.usage != (ask.prompt_tokens, tokens) or told.finish_reason != "length":
        exact = (ask.prompt_tokens, tokens)
        record.wrong.append(f"{ask.path}: usage {told.usage}, {told.finish_reason}; not {exact}")
    key = f"{at}/{seed}/{tokens}"
    record.compared += key in record.texts
    record.differing += record.texts.setdefault(key, told.text) != told.text


async def soak(
    server: ServerProcess, count: int, seconds: float, most: int, seed: int
) -> tuple[Record, list[Vitals]]:
    """Keep ``count`` clients busy for ``seconds``."""
    host, port = server.url.removeprefix("http://").split(":")
    address = (host, int(port))
    choices = asks(Counter(resolve_model("nano")))
    record = Record()
    deadline = time.monotonic() + seconds

    async def client(number: int) -> None:
        rng = random.Random(seed * 100_003 + number)
        await asyncio.sleep(rng.uniform(0, min(2.0, seconds / 4)))
        while time.monotonic() < deadline:
            at = rng.randrange(len(choices))
            ask = choices[at]
            body, tokens, its_seed = _body(ask, rng, most)
            manner = rng.choices(list(_MANNERS), list(_MANNERS.values()))[0]
            record.streams[manner.value] += 1
            try:
                told = await tell(address, ask.path, body, manner, rng)
            except TimeoutError:
                record.wrong.append(f"{ask.path}: no event for {HANG_S:g} s ({manner.value})")
                continue
            except (OSError, asyncio.IncompleteReadError, ValueError, IndexError) as error:
                record.wrong.append(f"{ask.path}: {error!r} ({manner.value})")
                continue
            check(record, ask, at, (tokens, its_seed), manner, told)

    looks: list[Vitals] = []

    async def watch() -> None:
        while True:
            await asyncio.sleep(max(1.0, seconds / 60))
            looks.append(await asyncio.to_thread(vitals, server.process.pid, server.url))

    watcher = asyncio.create_task(watch())
    try:
        await asyncio.gather(*(client(number) for number in range(count)))
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
    return record, looks


def result(record: Record, before: Vitals, after: Vitals, looks: list[Vitals]) -> dict[str, Any]:
    """The record as JSON."""
    return {
        "streams": dict(record.streams),
        "statuses": dict(record.statuses),
        "finished_streams": record.finished,
        "events": record.events,
        "tokens_of_finished_streams": record.tokens,
        "finished_with_wrong_usage": sum(": usage " in one for one in record.wrong),
        "hang_after_s": HANG_S,
        "longest_wait_for_an_event_s": round(record.longest_wait_s, 1),
        "hung_streams": sum(": no event for " in one for one in record.wrong),
        "wrong": dict(Tally(record.wrong)),
        "texts_compared": record.compared,
        "texts_that_differ_by_company": record.differing,
        "leaks": leaks(before, after, _FLAT_MIB),
        "before": before.shown(),
        "after": after.shown(),
        "peak_sockets": max((look.sockets for look in looks), default=0),
        "peak_waiting": max((look.waiting for look in looks), default=0),
        "core_mib": [look.core_mib for look in looks],
        "api_mib": [look.api_mib for look in looks],
    }


def commit() -> str:
    """The commit of the checkout."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def show(found: dict[str, Any]) -> None:
    """Print a record as a table."""
    table = Table(title="soak", show_header=False)
    for name, value in found.items():
        if name not in ("core_mib", "api_mib"):
            table.add_row(name, json.dumps(value, ensure_ascii=False))
    Console(width=120).print(table)


def main() -> int:
    """Start a server, soak it, print and write the record; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--most-tokens", type=int, default=260, help="longest reply")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write the JSON record")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        gnomon_serve(Path(folder) / "server.log", "nano", *_FLAGS) as server,
    ):
        server.wait_ready()
        asyncio.run(soak(server, args.streams, _WARM_UP_S, args.most_tokens, args.seed + 1))
        rest = vitals(server.process.pid, server.url)
        before = settled(server.process.pid, server.url, _unconnected(rest))
        start = time.monotonic()
        record, looks = asyncio.run(
            soak(server, args.streams, args.minutes * 60, args.most_tokens, args.seed)
        )
        took_s = time.monotonic() - start
        after = settled(server.process.pid, server.url, before)
        totals = metrics(server.url)
    preemptions = int(totals["preemptions_total"])
    if not preemptions and args.streams >= _CROWD:
        record.wrong.append("nobody was evicted: the soak did not reach that")
    found = {
        "command": "python -m benchmarks.soak " + " ".join(sys.argv[1:]),
        "commit": commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "server": " ".join(("gnomon serve nano", *_FLAGS)),
        "concurrent_streams": args.streams,
        "seconds": round(took_s, 1),
        **result(record, before, after, looks),
        "preemptions": preemptions,
        "requests_ended": after.ended - before.ended,
    }
    show(found)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return int(bool(found["wrong"] or found["leaks"]))


def _unconnected(rest: Vitals) -> Vitals:
    """The same server without a client."""
    return Vitals(**{**rest.shown(), "sockets": 0})  # type: ignore[arg-type]


if __name__ == "__main__":
    raise SystemExit(main())
