"""What the machine offers, asked once at startup and passed on as data."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class DeviceFacts:
    """The device an engine runs on.

    Attributes:
        kind: torch's device type, "cpu" for the reference backend.
        name: for people.
        memory_bytes: memory this process may use, a container's limit included.
    """

    kind: str
    name: str
    memory_bytes: int


def host_facts() -> DeviceFacts:
    """The host's CPU, which is what the reference backend runs on."""
    memory = psutil.virtual_memory().total
    if _CGROUP_LIMIT.is_file():
        limit = _CGROUP_LIMIT.read_text().strip()
        if limit.isdigit():
            memory = min(memory, int(limit))
    return DeviceFacts(
        kind="cpu", name=platform.processor() or platform.machine(), memory_bytes=memory
    )
