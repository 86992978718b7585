"""Live GPUs through NVML: identity, memory and who else is on them. Creates no CUDA context."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

import psutil

from gnomon.engine.device import GpuFacts, GpuProcess
from gnomon.engine.errors import EngineError


class NoGpu(EngineError):
    """No GPU can be asked; the message says why and what to do."""


def live_gpus(library: Any = None, environ: Mapping[str, str] = os.environ) -> tuple[GpuFacts, ...]:
    """The GPUs this process would see, in the order in which it would see them.

    Args:
        library: the ``pynvml`` module; imported if left out.
        environ: for CUDA_VISIBLE_DEVICES.

    Raises:
        NoGpu: the library or the driver is not there, or no GPU is visible.
    """
    nvml = library or _import()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NoGpu(f"the NVIDIA driver cannot be asked: {error}; is one installed?") from error
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        found = [_facts(nvml, handle) for handle in handles]
    except nvml.NVMLError as error:
        raise NoGpu(f"a GPU did not answer: {error}") from error
    finally:
        nvml.nvmlShutdown()
    gpus = _visible(found, environ.get("CUDA_VISIBLE_DEVICES"))
    if not gpus:
        raise NoGpu(
            f"none of the machine's {len(found)} GPUs is visible; check CUDA_VISIBLE_DEVICES"
        )
    return gpus


def _import() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise NoGpu(
            "GPUs are asked through NVML, and nvidia-ml-py is not installed; install gnomon[gpu], "
            "or describe a machine with --device h200 --gpus 4"
        ) from error


def _visible(found: list[GpuFacts], setting: str | None) -> tuple[GpuFacts, ...]:
    """Those that CUDA_VISIBLE_DEVICES names, by index or UUID, until the first that is not there.

    Indices count in PCI order here, which is CUDA's only with CUDA_DEVICE_ORDER=PCI_BUS_ID or
    equal GPUs; UUIDs always mean one device.
    """
    if setting is None:
        return tuple(found)
    chosen: list[GpuFacts] = []
    for name in (part.strip() for part in setting.split(",")):
        if name.isdigit() and int(name) < len(found):
            chosen.append(found[int(name)])
            continue
        named = [gpu for gpu in found if name and gpu.uuid.startswith(name)]
        if len(named) != 1:
            break
        chosen.append(named[0])
    return tuple(dict.fromkeys(chosen))


def _facts(nvml: Any, handle: Any) -> GpuFacts:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return GpuFacts(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        architecture=f"sm_{major}{minor}",
        processes=tuple(
            GpuProcess(process.pid, _command(process.pid), process.usedGpuMemory)
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            if process.pid != os.getpid()
        ),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _command(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:  # of another user or container
        return "unknown"
