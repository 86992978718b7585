"""``python -m benchmarks.fuzz``: random and mutated bodies on every POST endpoint.

Beside them, a tenth as many requests with odd methods, paths and queries, and a twentieth as many
connections that speak no proper HTTP.

Nothing may be a 500, an answer that is not what the API promises, or take more than 10 s; memory
stays flat, and afterwards no block, socket or task is left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import re
import sys
import tempfile
import time
from collections import Counter as Tally
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tests.clients.servers import gnomon_serve

from benchmarks.bodies import body, paths
from benchmarks.odd import garbage, target
from benchmarks.soak import commit
from benchmarks.vitals import Vitals, leaks, settled, vitals

_HANG_S = 10.0
_PATIENCE_S = 0.5  # with a connection whose bytes may ask for nothing
_ID = re.compile(r'"id":"(resp_\w+)"')
_HEAD = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_FLAT_MIB = 48.0
_CLIENTS = 8
_FLAGS = (
    "--kv-cache-dtype", "mxfp4", "--max-model-len", "384", "--max-num-seqs", "16",
)  # fmt: skip


@dataclass
class Findings:
    """What came of the bodies.

    Attributes:
        statuses: answers by path and status.
        wrong: reproductions: path, body and what was wrong.
        slowest_s: longest time of one answer.
        slowest: its path and the beginning of its body.
        bodies: bodies sent.
        targets: requests with odd methods, paths and queries.
        connections: connections that spoke no proper HTTP.
        known: ids of responses that were made, to ask for them.
    """

    statuses: Tally[str] = field(default_factory=Tally)
    wrong: list[dict[str, str]] = field(default_factory=list)
    slowest_s: float = 0.0
    slowest: str = ""

    bodies: int = 0
    targets: int = 0
    connections: int = 0
    known: deque[str] = field(default_factory=lambda: deque(maxlen=50))

    def note(self, what: str, status: str, took_s: float) -> None:
        """Count an answer."""
        self.statuses[f"{what.split(' ')[0]} {status}"] += 1
        if took_s > self.slowest_s:
            self.slowest_s, self.slowest = took_s, what


def problem(answer: httpx.Response) -> str | None:
    """What is wrong with an answer, whatever was asked; None if nothing is."""
    if answer.status_code >= 500:
        return f"status {answer.status_code}"
    text = answer.content.decode(errors="replace")
    if "Traceback" in text or "internal_error" in text or "engine_error" in text:
        return "an internal error is shown"
    if "text/event-stream" in answer.headers.get("content-type", ""):
        return _stream_problem(answer)
    try:
        told = answer.json()
    except ValueError:
        return "the answer is not JSON"
    return None if answer.status_code < 400 else _error_problem(told)


def _error_problem(told: Any) -> str | None:
    error = told.get("error") if isinstance(told, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return "the error has no message"
    return None if error.get("type") else "the error has no type"


def _stream_problem(answer: httpx.Response) -> str | None:
    try:
        text = answer.content.decode()
    except UnicodeDecodeError:
        return "the stream is not UTF-8"
    if not text.endswith("\n\n"):
        return "the stream was cut"
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    try:
        events = [json.loads(line) for line in lines if line != "[DONE]"]
    except ValueError:
        return "an event is not JSON"
    last = events[-1].get("type", "")
    ended = lines[-1] == "[DONE]" or last in (
        "response.completed", "response.incomplete", "message_stop",
    )  # fmt: skip
    return None if ended else "the stream has no end"


async def fuzz(url: str, endpoints: list[str], count: int, seed: int) -> Findings:
    """Send ``count`` bodies over a few connections, and what goes beside them."""
    findings = Findings()
    numbers = iter(range(count))
    host, _, port = url.removeprefix("http://").partition(":")

    async def client(http: httpx.AsyncClient) -> None:
        for number in numbers:
            rng = random.Random(seed * 10_000_019 + number)
            path = endpoints[number % len(endpoints)]
            await _ask(http, path, body(path, rng), findings)
            if number % 10 == 0:
                await _aim(http, *target(rng, findings.known), findings)
            if number % 20 == 0:
                await _shout((host, int(port)), garbage(rng), findings)

    limits = httpx.Limits(max_connections=_CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=_HANG_S, limits=limits) as http:
        await asyncio.gather(*(client(http) for _ in range(_CLIENTS)))
    return findings


async def _ask(http: httpx.AsyncClient, path: str, content: bytes, findings: Findings) -> None:
    start = time.monotonic()
    try:
        answer = await http.post(
            path, content=content, headers={"content-type": "application/json"}
        )
        status, wrong = str(answer.status_code), problem(answer)
    except httpx.TimeoutException:
        status, wrong = "none", f"no answer within {_HANG_S:.0f} s"
    except httpx.HTTPError as error:
        status, wrong = "none", repr(error)
    else:
        findings.known += _ID.findall(answer.text)[:1]
    findings.bodies += 1
    findings.note(f"{path} {content[:300]!r}", status, time.monotonic() - start)
    if wrong is not None:
        shown = content.decode(errors="backslashreplace")
        findings.wrong.append({"path": path, "problem": wrong, "body": shown[:20000]})


async def _aim(http: httpx.AsyncClient, method: str, path: str, findings: Findings) -> None:
    """Ask for something that may not be there, in a way that may not be allowed."""
    start = time.monotonic()
    try:
        answer = await http.request(method, path)
        status = str(answer.status_code)
        wrong = f"status {status}" if answer.status_code >= 500 else None
        if method != "HEAD" and wrong is None:
            wrong = problem(answer)
    except httpx.HTTPError as error:
        status, wrong = "none", repr(error)
    findings.targets += 1
    findings.note(f"{method} {path}", status, time.monotonic() - start)
    if wrong is not None:
        findings.wrong.append({"path": f"{method} {path}", "problem": wrong, "body": ""})


async def _shout(address: tuple[str, int], content: bytes, findings: Findings) -> None:
    """Send bytes over a connection of their own; an answer must be one of HTTP, without a 5xx."""
    start = time.monotonic()
    reader, writer = await asyncio.open_connection(*address)
    said = b""
    try:
        writer.write(content)
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_PATIENCE_S):
                await writer.drain()
                said = await reader.read(65536)
    finally:
        writer.transport.abort()
    head = _HEAD.match(said)
    status = head[1].decode() if head else "none"
    findings.connections += 1
    findings.note("(connection)", status, time.monotonic() - start)
    if (said and head is None) or status.startswith("5"):
        shown = content.decode(errors="backslashreplace")
        findings.wrong.append(
            {"path": "(connection)", "problem": f"answered {said[:80]!r}", "body": shown[:20000]}
        )


def run(pid: int, url: str, count: int, seed: int) -> tuple[Findings, Vitals, Vitals]:
    """Fuzz a running server, a tenth of it first to warm up; its vitals before and after."""
    endpoints = paths(httpx.get(f"{url}/openapi.json").json())
    rest = vitals(pid, url)
    first = asyncio.run(fuzz(url, endpoints, count // 10, seed + 1))
    before = settled(pid, url, rest)
    found = asyncio.run(fuzz(url, endpoints, count - count // 10, seed))
    found.statuses += first.statuses
    found.bodies += first.bodies
    found.targets += first.targets
    found.connections += first.connections
    found.wrong = first.wrong + found.wrong
    return found, before, settled(pid, url, before)


def main() -> int:
    """Start a server, fuzz it, print and write the record; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="benchmarks.fuzz", description=__doc__)
    parser.add_argument("--bodies", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write the JSON record")
    parser.add_argument("--wrong", type=Path, help="where to write every reproduction, as JSONL")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        gnomon_serve(Path(folder) / "server.log", "nano", *_FLAGS) as server,
    ):
        server.wait_ready()
        start = time.monotonic()
        found, before, after = run(server.process.pid, server.url, args.bodies, args.seed)
        took_s = time.monotonic() - start
        log = server.log.read_text()
        tracebacks = log.count("Traceback")
    if args.wrong:
        args.wrong.write_text("".join(json.dumps(one) + "\n" for one in found.wrong))
    record = {
        "command": "python -m benchmarks.fuzz " + " ".join(sys.argv[1:]),
        "commit": commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "server": " ".join(("gnomon serve nano", *_FLAGS)),
        "bodies": found.bodies,
        "odd_targets": found.targets,
        "odd_connections": found.connections,
        "seconds": round(took_s, 1),
        "slowest_answer_s": round(found.slowest_s, 2),
        "slowest_asked": found.slowest,
        "answers": dict(sorted(found.statuses.items())),
        "wrong": dict(Tally(f"{one['path']}: {one['problem']}" for one in found.wrong)),
        "tracebacks_in_the_log": tracebacks,
        **({"the_first": log[log.index("Traceback") :][:4000].splitlines()} if tracebacks else {}),
        "leaks": leaks(before, after, _FLAT_MIB),
        "before": before.shown(),
        "after": after.shown(),
    }
    print(json.dumps(record, indent=1))
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n")
    return int(bool(record["wrong"] or record["leaks"] or tracebacks))


if __name__ == "__main__":
    raise SystemExit(main())
