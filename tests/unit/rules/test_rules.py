"""Every startup rule, as a table: what breaks it, what the message names, and that all come."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from gnomon.engine.device import (
    DeviceFacts,
    GpuFacts,
    GpuProcess,
    described_device,
    gpu_machine,
    host_facts,
)
from gnomon.engine.memory import plan_memory
from gnomon.engine.models.config import ModelConfig, parse_config
from gnomon.engine.models.presets.nano import nano_config
from gnomon.engine.options import EngineOptions
from gnomon.engine.rules import RULES, check

CONFIG = parse_config(nano_config(2048, {"bos": 0, "eos": 1, "image": 2, "video": 3}))
DEVICE = DeviceFacts(kind="cpu", name="a test machine", memory_bytes=1 << 33)
H200S = described_device("h200", 2)


def gpu(*processes: GpuProcess) -> DeviceFacts:
    """One live GPU of 80 GB, 60 of them free."""
    return gpu_machine(
        (GpuFacts("GPU-1", "NVIDIA H100", 80 * 10**9, 60 * 10**9, "sm_90", processes),)
    )


OURS = GpuProcess(4321, "python3", 20 * 10**9)
STRANGER = GpuProcess(77, "unknown", None)


def refusals(
    config: ModelConfig = CONFIG, device: DeviceFacts = DEVICE, **options: Any
) -> dict[str, str]:
    asked = EngineOptions(model="nano", **options)
    found = check(config, device, asked, plan_memory(config, asked, device))
    assert all(refusal.remedy for refusal in found)
    return {refusal.code: refusal.message for refusal in found}


def test_the_defaults_are_accepted() -> None:
    assert refusals() == {}


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("block-size", {"block_size": 64}, "--block-size is 64, .* blocks of 128 tokens"),
    ("model-length", {"max_model_len": 40_000}, "is 40000, but the model has 32768 positions"),
    (
        "pool-too-small",
        {"max_model_len": 1025, "num_blocks": 8},
        "1025 tokens needs 9 cache blocks, but the cache has 8 .327,680 bytes each",
    ),
    (
        "pool-too-small",
        {"kv_cache_memory_bytes": 1000},
        "32768 tokens needs 256 cache blocks, but the cache has 0",
    ),
    (
        "device-memory",
        {"num_blocks": 50_000},
        "pools of 16,384,000,000 bytes do not fit the 8,589,934,592 bytes of a test machine",
    ),
    (
        "device-memory",
        {"device": gpu(), "kv_cache_memory_bytes": 60 * 10**9, "num_blocks": 200_000},
        r"A rank needs .*weights .*caches 65,536,000,000 \(200,000 blocks of 327,680\).*GPU-1 may "
        r"use 60,000,000,000 \(--gpu-memory-utilization is 0.9\)",
    ),
    (
        "tensor-parallel",
        {"device": described_device("h200", 4), "tensor_parallel_size": 3},
        "--tensor-parallel-size 3 cannot divide this model: the size is 3; it must be one of 1",
    ),
    (
        "tensor-parallel",
        {
            "device": H200S,
            "tensor_parallel_size": 2,
            "config": replace(CONFIG, num_heads=3, num_kv_heads=3),
        },
        "3 query heads do not divide by 2; 3 KV heads neither divide by 2 nor divide it",
    ),
    ("ranks-on-cpu", {"tensor_parallel_size": 2}, "is 2, but the CPU backend runs in one process"),
    (
        "gpu-count",
        {"device": H200S, "tensor_parallel_size": 4},
        "is 4, but 2 x NVIDIA H200 has 2 GPUs",
    ),
    (
        "shared-gpu",
        {"device": gpu(OURS, STRANGER)},
        r"GPU-1 by pid 4321 \(python3, 20,000,000,000 bytes\); GPU-1 by pid 77 \(unknown, an",
    ),
    (
        "context-parallel",
        {"decode_context_parallel_size": 2, "sequence_parallel_size": 4},
        "--decode-context-parallel-size 2, --sequence-parallel-size 4: a rank holds whole",
    ),
    (
        "no-effect",
        {
            "gpu_memory_utilization": 0.5,
            "allow_shared_gpu": True,
            "host_cache_mode": "lazy",
        },
        "--gpu-memory-utilization on a CPU, --allow-shared-gpu on a CPU, --host-cache-mode without",
    ),
    (
        "host-cache",
        {"host_cache_bytes": 1000, "enable_prefix_caching": False},
        "is 1,000, but prefix caching is off, .*; a block takes 327,680 bytes of host memory",
    ),
    (
        "device-memory",
        {"host_cache_bytes": 1 << 33},
        "and a host tier of 8,589,934,592 bytes do not fit the 8,589,934,592 bytes",
    ),
    (
        "budget-below-requests",
        {"max_num_batched_tokens": 200, "max_num_seqs": 201, "max_model_len": 900},
        "--max-num-batched-tokens is 200, so the 201 requests",
    ),
    (
        "no-local-block",
        {"config": replace(CONFIG, local_blocks=0)},
        "forces 0 local blocks",
    ),
    (
        "forced-blocks",
        {"config": replace(CONFIG, init_blocks=3, local_blocks=2)},
        "3 initial and 2 local blocks, but selects only 4",
    ),
    (
        "cache-format",
        {"config": replace(CONFIG, head_dim=72), "kv_cache_dtype": "mxfp4"},
        "The cache cannot store this model: keys and values: .*72",
    ),
    (
        "cache-format",
        {"config": replace(CONFIG, index_dim=72), "index_cache_dtype": "nvfp4"},
        "index keys: .*72",
    ),
    (
        "reuse-options",
        {"index_topk_freq": 4, "index_topk_pattern": "FS"},
        "--index-topk-freq, --index-topk-pattern would have no effect",
    ),
]


@pytest.mark.parametrize(("code", "options", "message"), CASES)
def test_a_broken_rule_is_refused_alone_and_with_its_numbers(
    code: str, options: dict[str, Any], message: str
) -> None:
    found = refusals(**options)
    assert list(found) == [code]
    assert re.search(message, found[code])


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 128},
        {"max_model_len": 32_768},
        {"max_model_len": 1024, "num_blocks": 8},
        {"max_num_batched_tokens": 16, "max_num_seqs": 16},  # chunks smaller than a block
        {"use_index_cache": True, "index_topk_freq": 4},
        {"kv_cache_dtype": "mxfp4", "index_cache_dtype": "bf16"},
        {"kv_cache_dtype": "fp8", "index_cache_dtype": "nvfp4"},
        {"config": replace(CONFIG, init_blocks=3)},
        {"device": gpu(OURS), "allow_shared_gpu": True},
        {"device": gpu()},
        {"device": H200S, "tensor_parallel_size": 2},
        {"device": H200S, "host_cache_bytes": 1 << 30},
        {"host_cache_bytes": 1 << 20, "kv_cache_dtype": "nvfp4"},
    ],
)
def test_what_just_holds_is_accepted(options: dict[str, Any]) -> None:
    assert refusals(**options) == {}


def test_all_broken_rules_are_told_together_in_the_order_of_the_table() -> None:
    found = refusals(
        replace(CONFIG, local_blocks=0, init_blocks=9),
        replace(DEVICE, memory_bytes=1000),
        block_size=16,
        max_model_len=99_999,
        num_blocks=1,
        tensor_parallel_size=5,
        prefill_context_parallel_size=2,
        host_cache_bytes=1,
        allow_shared_gpu=True,
        max_num_batched_tokens=4,
        index_topk_freq=2,
    )
    on_gpus = {"cache-format", "gpu-count", "shared-gpu"}
    assert list(found) == [rule.code for rule in RULES if rule.code not in on_gpus]


def test_codes_are_unique_and_every_rule_has_a_case() -> None:
    codes = [rule.code for rule in RULES]
    assert len(set(codes)) == len(codes)
    assert {code for code, _, _ in CASES} == set(codes)


def test_the_host_has_a_name_and_memory() -> None:
    facts = host_facts()
    assert facts.kind == "cpu"
    assert facts.name
    assert facts.memory_bytes > 1 << 20
