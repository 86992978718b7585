"""Running out of memory at startup is a sentence with the plan's numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gnomon.engine.device import DeviceFacts, described_device
from gnomon.engine.errors import OutOfMemory
from gnomon.engine.memory import MemoryPlan, plan_memory
from gnomon.engine.models.config import parse_config
from gnomon.engine.models.presets.nano import nano_config
from gnomon.engine.options import EngineOptions
from gnomon.engine.out_of_memory import memory_told

CHILD = """
import resource, sys
from gnomon.engine.errors import OutOfMemory
from gnomon.engine.options import EngineOptions
from gnomon.engine.runner.core import EngineCore

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = used + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    EngineCore.start(EngineOptions(model=sys.argv[1], num_blocks=int(sys.argv[3])))
except OutOfMemory as error:
    print(error)
    sys.exit(3)
"""


def test_caches_that_do_not_fit_are_told_with_the_plans_numbers(tiny_model: Path) -> None:
    blocks = 60_000  # of 14,336 bytes, in a process that may have 600 MB more
    arguments = [str(tiny_model), str(600 << 20), str(blocks)]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"OMP_NUM_THREADS": "1"},
    )
    assert child.returncode == 3, child.stderr
    assert "memory ran out while allocating the caches on" in child.stdout
    assert "weights 822,304, caches 860,160,000 (60,000 blocks of 14,336)" in child.stdout
    assert "Lower --kv-cache-memory-bytes" in child.stdout


CONFIG = parse_config(nano_config(2048, {"bos": 0, "eos": 1, "image": 2, "video": 3}))


def planned(device: DeviceFacts) -> MemoryPlan:
    return plan_memory(CONFIG, EngineOptions(model="nano"), device)


def test_a_gpu_that_runs_out_is_told_what_to_lower() -> None:
    device = described_device("h200", 1)
    plan = planned(device)
    with (
        pytest.raises(OutOfMemory) as caught,
        memory_told("capturing graphs", plan, device),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
    text = str(caught.value)
    assert "while capturing graphs on NVIDIA H200, which has 150,754,820,096 bytes" in text
    assert f"workspace {plan.workspace_bytes:,}" in text
    assert f"graphs {plan.graph_bytes:,}" in text
    assert "Lower --gpu-memory-utilization or --kv-cache-memory-bytes" in text
    assert text.endswith("(CUDA out of memory. Tried to allocate 2.00 GiB.)")


def test_other_errors_pass_through() -> None:
    device = described_device("h200", 1)
    with pytest.raises(RuntimeError, match="shapes"), memory_told("x", planned(device), device):
        raise RuntimeError("shapes cannot be multiplied")


def test_the_first_line_of_an_empty_error_is_its_name() -> None:
    device = DeviceFacts("cpu", "a test machine", 1000)
    plan = planned(device)
    with (
        pytest.raises(OutOfMemory, match=r"\(MemoryError\)"),
        memory_told("loading the weights", plan, device),
    ):
        raise MemoryError
