"""Live GPUs: identity by UUID, memory, and the processes of others by pid."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gnomon.engine.device import gpu_machine
from gnomon.engine.memory import plan_memory
from gnomon.engine.models.config import parse_config
from gnomon.engine.models.presets.nano import nano_config
from gnomon.engine.nvml import NoGpu, live_gpus
from gnomon.engine.options import EngineOptions
from gnomon.engine.rules import check


class FakeNvml:
    """Two H200s; another's process is on the second. Answers as pynvml 13 does."""

    class NVMLError(Exception):
        pass

    def __init__(self, processes: list[list[Any]], broken: str = "") -> None:
        self.processes = processes
        self.broken = broken
        self.open = 0

    def nvmlInit(self) -> None:
        if self.broken == "driver":
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.processes)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        if self.broken == "device":
            raise self.NVMLError("GPU is lost")
        used = sum(p.usedGpuMemory or 0 for p in self.processes[handle])
        return SimpleNamespace(total=150_754_820_096, free=150_109_880_320 - used, used=used)

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return (9, 0)

    def nvmlDeviceGetUUID(self, handle: int) -> str | bytes:
        return (b"GPU-aaaa-1", "GPU-bbbb-2")[handle]

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return self.processes[handle]


def process(pid: int, memory: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=memory)


PARENT = os.getppid()
TWO = [[process(os.getpid(), 10**9)], [process(PARENT, 9 * 10**9), process(2**22 + 7, None)]]


def test_a_gpu_is_known_by_uuid_with_its_memory_and_the_processes_of_others() -> None:
    nvml = FakeNvml(TWO)
    first, second = live_gpus(nvml, {})
    assert nvml.open == 0
    assert (first.uuid, second.uuid) == ("GPU-aaaa-1", "GPU-bbbb-2")
    assert first.processes == ()
    assert (first.total_bytes, first.architecture) == (150_754_820_096, "sm_90")
    assert second.free_bytes == 141_109_880_320
    assert [(p.pid, p.memory_bytes) for p in second.processes] == [
        (PARENT, 9 * 10**9),
        (2**22 + 7, None),
    ]
    assert second.processes[0].name != "unknown" == second.processes[1].name


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("1,0", ["GPU-bbbb-2", "GPU-aaaa-1"]),
        ("GPU-bbbb", ["GPU-bbbb-2"]),
        ("GPU-aaaa-1,1", ["GPU-aaaa-1", "GPU-bbbb-2"]),
        ("0,9,1", ["GPU-aaaa-1"]),  # CUDA stops at the first that is not there
        ("0,0", ["GPU-aaaa-1"]),
    ],
)
def test_only_visible_gpus_count_in_the_order_of_ranks(setting: str, expected: list[str]) -> None:
    found = live_gpus(FakeNvml(TWO), {"CUDA_VISIBLE_DEVICES": setting})
    assert [gpu.uuid for gpu in found] == expected


@pytest.mark.parametrize(
    ("nvml", "environ", "told"),
    [
        (FakeNvml(TWO, "driver"), {}, "cannot be asked: Driver Not Loaded"),
        (FakeNvml(TWO, "device"), {}, "did not answer: GPU is lost"),
        (FakeNvml(TWO), {"CUDA_VISIBLE_DEVICES": ""}, "none of the machine's 2 GPUs is visible"),
        (FakeNvml([]), {}, "none of the machine's 0 GPUs"),
    ],
    ids=["driver", "device", "hidden", "none"],
)
def test_a_machine_without_a_usable_gpu_is_told(
    nvml: FakeNvml, environ: dict[str, str], told: str
) -> None:
    with pytest.raises(NoGpu, match=told):
        live_gpus(nvml, environ)
    assert nvml.open == 0


def test_without_the_library_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NoGpu, match=r"install gnomon\[gpu\], or describe a machine"):
        live_gpus()


def test_a_foreign_process_is_refused_by_pid_and_its_memory_is_not_ours() -> None:
    config = parse_config(nano_config(2048, {"bos": 0, "eos": 1, "image": 2, "video": 3}))
    machine = gpu_machine(live_gpus(FakeNvml(TWO), {}))
    options = EngineOptions(model="nano", tensor_parallel_size=2)
    plan = plan_memory(config, options, machine)
    (refusal,) = check(config, machine, options, plan)
    assert refusal.code == "shared-gpu"
    assert f"GPU-bbbb-2 by pid {PARENT}" in refusal.message
    assert "9,000,000,000 bytes" in refusal.message
    allowed = options.model_copy(update={"allow_shared_gpu": True})
    assert check(config, machine, allowed, plan) == ()
    first, second = plan.budgets
    assert first.usable_bytes == int(150_754_820_096 * 0.9)
    assert second.usable_bytes == min(first.usable_bytes, 141_109_880_320)


@pytest.mark.gpu
def test_the_gpus_of_this_machine_are_those_that_torch_sees() -> None:
    import torch

    gpus = live_gpus()
    assert len(gpus) == torch.cuda.device_count()
    for rank, gpu in enumerate(gpus):
        properties = torch.cuda.get_device_properties(rank)
        assert gpu.uuid == f"GPU-{properties.uuid}"
        assert gpu.architecture == f"sm_{properties.major}{properties.minor}"
        assert properties.total_memory <= gpu.total_bytes < properties.total_memory * 1.01
        assert 0 < gpu.free_bytes <= gpu.total_bytes
