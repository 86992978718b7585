"""Devices a plan can be made for without having one: names and memory, with sources.

``memory_bytes`` is what the driver reports as the device's total, which is what a process can
plan with; it is less than a data sheet's round figure. Where no report was found, the data sheet's
decimal gigabytes are taken, which is less again.
"""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1 << 20
_GIB = 1 << 30
_GB = 10**9


@dataclass(frozen=True)
class DeviceSpec:
    """One kind of device.

    Attributes:
        name: for people.
        memory_bytes: total memory of one device.
        architecture: compute capability or gfx name.
        source: where ``memory_bytes`` is from.
    """

    name: str
    memory_bytes: int
    architecture: str
    source: str


DEVICES: dict[str, DeviceSpec] = {
    "a100-80g": DeviceSpec(
        "NVIDIA A100 80GB", 81_920 * _MIB, "sm_80", "nvidia-smi, modal-labs/modal-client #2797"
    ),
    "h100": DeviceSpec(
        "NVIDIA H100 80GB", 81_559 * _MIB, "sm_90", "nvidia-smi, modal-labs/modal-client #2797"
    ),
    "h200": DeviceSpec("NVIDIA H200", 143_771 * _MIB, "sm_90", "NVML, measured"),
    "b200": DeviceSpec(
        "NVIDIA B200",
        int(178.35 * _GIB),
        "sm_100",
        "CUDA device properties, pytorch/ao #4002",
    ),
    "mi300x": DeviceSpec(
        "AMD Instinct MI300X", 206_141_652_992, "gfx942", "rocm-smi, ROCm issue 4750"
    ),
    "mi325x": DeviceSpec("AMD Instinct MI325X", 256 * _GB, "gfx942", "data sheet, 256 GB"),
    "mi355x": DeviceSpec("AMD Instinct MI355X", 288 * _GB, "gfx950", "data sheet, 288 GB"),
}
"""By the name given to ``gnomon plan --device``."""
