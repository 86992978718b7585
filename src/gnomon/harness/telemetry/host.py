"""What machine this is: facts that a number depends on."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict


class Gpu(BaseModel):
    """One GPU as its driver describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    uuid: str
    name: str
    memory_mib: int
    driver: str


class HostFacts(BaseModel):
    """The machine of a run.

    Attributes:
        hostname: its name.
        system: kernel and release.
        distribution: pretty name of the operating system.
        cpu: model name.
        cpus: logical CPUs this process may use.
        memory_bytes: of the machine.
        gpus: in the driver's order; empty without NVIDIA's tools.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    hostname: str
    system: str
    distribution: str
    cpu: str
    cpus: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()

    @property
    def hardware_class(self) -> str:
        """What two machines must share for their numbers to be comparable."""
        gpus = ", ".join(f"{gpu.name} {gpu.memory_mib} MiB" for gpu in self.gpus) or "no GPU"
        return f"{self.cpu} x {self.cpus}; {gpus}"


def host_facts() -> HostFacts:
    """Read the facts of this machine."""
    return HostFacts(
        hostname=platform.node(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        distribution=_distribution(),
        cpu=_cpu_model(),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        memory_bytes=int(psutil.virtual_memory().total),
        gpus=gpus(),
    )


def gpus() -> tuple[Gpu, ...]:
    """GPUs from ``nvidia-smi``; none where it is absent or has nothing to say."""
    try:
        answer = subprocess.run(
            [
                "nvidia-smi",
                "--query-gpu=uuid,name,memory.total,driver_version",
                "--format=csv,noheader,nounits",
            ],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_nvidia_smi(answer)


def parse_nvidia_smi(answer: str) -> tuple[Gpu, ...]:
    """GPUs of a ``uuid, name, memory.total, driver_version`` table without header and units."""
    found = []
    for line in answer.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 4 and fields[2].isdigit():
            found.append(
                Gpu(uuid=fields[0], name=fields[1], memory_mib=int(fields[2]), driver=fields[3])
            )
    return tuple(found)


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
