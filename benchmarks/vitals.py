"""What a server holds on to: memory, sockets, tasks and blocks, seen from outside."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, fields

import httpx
import psutil

_SAMPLE = re.compile(r"^gnomon:(\w+)(?:\{\w+=\"(\w+)\"\})? (\S+)$", re.MULTILINE)
_MIB = 1 << 20


@dataclass(frozen=True)
class Vitals:
    """One look at a server.

    Attributes:
        api_mib: resident memory of the API process.
        core_mib: resident memory of the engine core.
        sockets: open TCP connections of the API process, without the listening one.
        files: open file descriptors of the API process.
        threads: of the API process.
        tasks: of the API process's event loop.
        running: requests in the batch.
        waiting: requests in the queue.
        used_blocks: blocks that live requests hold.
        ended: requests that ended, for whatever reason, since the start.
    """

    api_mib: float
    core_mib: float
    sockets: int
    files: int
    threads: int
    tasks: int
    running: int
    waiting: int
    used_blocks: int
    ended: int

    def shown(self) -> dict[str, float]:
        """Everything, as JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def idle(self) -> bool:
        """Whether nobody is served."""
        return not (self.running or self.waiting or self.used_blocks)


def metrics(url: str) -> dict[str, float]:
    """Every counter and gauge of ``/metrics``; labelled ones as ``name/label``."""
    text = httpx.get(f"{url}/metrics", timeout=30).text
    return {
        f"{name}/{label}" if label else name: float(value)
        for name, label, value in _SAMPLE.findall(text)
    }


def vitals(pid: int, url: str) -> Vitals:
    """Look at the server whose API process is ``pid``."""
    api = psutil.Process(pid)
    children = [c for c in api.children(recursive=True) if "gnomon.engine" in " ".join(c.cmdline())]
    found = metrics(url)
    connections = [c for c in api.net_connections("tcp") if c.status != psutil.CONN_LISTEN]
    return Vitals(
        api_mib=round(api.memory_info().rss / _MIB, 1),
        core_mib=round(sum(c.memory_info().rss for c in children) / _MIB, 1),
        sockets=len(connections),
        files=api.num_fds(),
        threads=api.num_threads(),
        tasks=int(found["api_tasks"]),
        running=int(found["num_requests_running"]),
        waiting=int(found["num_requests_waiting"]),
        used_blocks=int(found["kv_cache_blocks/used"]),
        ended=int(sum(n for name, n in found.items() if name.startswith("request_success_total/"))),
    )


def settled(pid: int, url: str, before: Vitals, timeout_s: float = 30) -> Vitals:
    """The first look at which nothing is left of the load, else the last before the time is up."""
    deadline = time.monotonic() + timeout_s
    while True:
        now = vitals(pid, url)
        gone = now.idle and now.sockets <= before.sockets and now.tasks <= before.tasks
        if gone or time.monotonic() > deadline:
            return now
        time.sleep(0.2)


def leaks(before: Vitals, after: Vitals, memory_mib: float) -> list[str]:
    """What the load left behind, in words; nothing if nothing.

    Args:
        before: at rest, after a warm-up.
        after: at rest.
        memory_mib: growth of a process's resident memory that is still flat.
    """
    found = []
    for name in ("running", "waiting", "used_blocks"):
        if getattr(after, name):
            found.append(f"{name}: {getattr(after, name)} are left")
    for name in ("sockets", "files", "tasks"):
        if getattr(after, name) > getattr(before, name):
            found.append(f"{name}: {getattr(before, name)} before, {getattr(after, name)} after")
    for name in ("api_mib", "core_mib"):
        grown = getattr(after, name) - getattr(before, name)
        if grown > memory_mib:
            found.append(f"{name}: grew by {grown:.1f} MiB")
    return found
