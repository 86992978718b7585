"""What the machine offers, asked once at startup and passed on as data."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

from gnomon.engine.device_table import DEVICES

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU.

    Attributes:
        pid: process id; of another container's process it may mean nothing here.
        name: its command, or "unknown".
        memory_bytes: what it holds; None if the driver does not say.
    """

    pid: int
    name: str
    memory_bytes: int | None


@dataclass(frozen=True)
class GpuFacts:
    """One GPU.

    Attributes:
        uuid: identity; an index depends on who lists the devices, a UUID does not.
        name: for people.
        total_bytes: memory as the driver reports it.
        free_bytes: what nobody holds.
        architecture: as in :mod:`gnomon.engine.device_table`.
        processes: processes on it, other than this one.
    """

    uuid: str
    name: str
    total_bytes: int
    free_bytes: int
    architecture: str
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True)
class DeviceFacts:
    """The device an engine runs on, or is planned for.

    Attributes:
        kind: torch's device type, "cpu" for the reference backend.
        name: for people.
        memory_bytes: memory this process may use, a container's limit included; of one GPU.
        gpus: one entry a GPU, in the order of ranks; empty on a CPU.
        described: a device that was named rather than asked; nothing runs on it.
    """

    kind: str
    name: str
    memory_bytes: int
    gpus: tuple[GpuFacts, ...] = ()
    described: bool = False


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


def described_device(key: str, count: int) -> DeviceFacts:
    """A machine with ``count`` empty GPUs of a kind in the device table.

    Raises:
        KeyError: the table has no such device.
    """
    spec = DEVICES[key]
    gpus = tuple(
        GpuFacts(
            f"{key}-{rank}", spec.name, spec.memory_bytes, spec.memory_bytes, spec.architecture
        )
        for rank in range(count)
    )
    name = spec.name if count == 1 else f"{count} x {spec.name}"
    return DeviceFacts("cuda", name, spec.memory_bytes, gpus, described=True)


def gpu_machine(gpus: tuple[GpuFacts, ...]) -> DeviceFacts:
    """The device facts of live GPUs; the smallest one's memory stands for all."""
    names = " + ".join(dict.fromkeys(gpu.name for gpu in gpus))
    name = names if len(gpus) == 1 else f"{len(gpus)} x {names}"
    return DeviceFacts("cuda", name, min(gpu.total_bytes for gpu in gpus), gpus)
