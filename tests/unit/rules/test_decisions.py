"""Every combination of the documentation's table, put to the rules as its outcome says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import typer.main

from gnomon.cli.main import build_app
from gnomon.engine.decisions import DECISIONS, Decision
from gnomon.engine.device import DeviceFacts, described_device
from gnomon.engine.draft_memory import DRAFTS
from gnomon.engine.errors import ModelConfigError
from gnomon.engine.memory import plan_memory
from gnomon.engine.models.config import parse_config
from gnomon.engine.models.presets.nano import nano_config
from gnomon.engine.models.presets.released import minimax_m3
from gnomon.engine.options import EngineOptions
from gnomon.engine.rules import RULES, check

RAW = nano_config(2048, {"bos": 0, "eos": 1, "image": 2, "video": 3})
CONFIG = parse_config(RAW)
DENSE_FIRST = replace(CONFIG, layers=(replace(CONFIG.layers[0], attention="dense"), *CONFIG.layers))
CPU = DeviceFacts(kind="cpu", name="a test machine", memory_bytes=1 << 33)
FOUR_BIT = {"kv_cache_dtype": "mxfp4"}

ASKED: dict[str, list[dict[str, Any]]] = {
    "K and V bf16 or fp8; index keys left out, bf16 or fp8": [
        {"kv_cache_dtype": kv, "index_cache_dtype": index}
        for kv in ("bf16", "fp8")
        for index in (None, "bf16", "fp8")
    ],
    "K and V bf16 or fp8; index keys 4-bit": [
        {"kv_cache_dtype": kv, "index_cache_dtype": index}
        for kv in ("bf16", "fp8")
        for index in ("mxfp4", "nvfp4")
    ],
    "K, V and index keys 4-bit": [FOUR_BIT | {"index_cache_dtype": "mxfp4"}],
    "K and V 4-bit; index keys left out": [FOUR_BIT],
    "K and V 4-bit; index keys bf16 or fp8": [
        FOUR_BIT | {"index_cache_dtype": index} for index in ("bf16", "fp8")
    ],
    "NVFP4 caches": [{"kv_cache_dtype": "nvfp4"}],
    "any caches with a block size other than the model's sparse block": [
        {"kv_cache_dtype": kv, "block_size": 64} for kv in ("bf16", "mxfp4")
    ],
    "4-bit caches on a device without 4-bit arithmetic": [
        FOUR_BIT,
        FOUR_BIT | {"device": described_device("h200", 1)},
        FOUR_BIT | {"device": described_device("mi300x", 1)},
    ],
    "4-bit K and V for a model with dense attention layers": [
        FOUR_BIT | {"config": DENSE_FIRST, "max_model_len": 1024},
        FOUR_BIT
        | {
            "config": parse_config(minimax_m3()),
            "device": described_device("b200", 8),
            "tensor_parallel_size": 8,
        },
    ],
    "4-bit K and V with activations in float32": [FOUR_BIT | {"dtype": "float32"}],
    "4-bit K and V with pages in host memory": [FOUR_BIT | {"host_cache_bytes": 1 << 20}],
    "4-bit K and V with a draft that has a pool of its own": [
        FOUR_BIT | {"device": described_device("h200", 1), "draft": DRAFTS["dspark"]}
    ],
    "decode context parallelism": [FOUR_BIT | {"decode_context_parallel_size": 2}],
    "prefill context parallelism": [FOUR_BIT | {"prefill_context_parallel_size": 2}],
    "sequence parallelism (Ulysses)": [FOUR_BIT | {"sequence_parallel_size": 2}],
    "index context parallelism": [FOUR_BIT | {"index_context_parallel_size": 4}],
    "no forced local block": [FOUR_BIT | {"config": replace(CONFIG, local_blocks=0)}],
    "a draft at tensor parallel 2": [
        {
            "device": described_device("h200", 2),
            "tensor_parallel_size": 2,
            "draft": DRAFTS["dspark"],
        }
    ],
}

FLAGS_NOBODY_HAS = {
    "4-bit caches inside another engine, as its plugin": "--plugin",
    "4-bit K and V handed to another server (prefill and decode apart)": "--kv-transfer-config",
    "4-bit K and V with a draft in the target's pool (MTP)": "--num-mtp-modules",
    "a draft with two-batch overlap": "--enable-tbo",
    "index queries in fp8 without 4-bit index keys": "--index-query-dtype",
}


def codes(asked: dict[str, Any]) -> list[str]:
    asked = dict(asked)
    config, device = asked.pop("config", CONFIG), asked.pop("device", CPU)
    draft = asked.pop("draft", None)
    options = EngineOptions(model="any", **asked)
    plan = plan_memory(config, options, device, draft=draft)
    return [refusal.code for refusal in check(config, device, options, plan)]


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda d: d.combination)
def test_a_combination_has_the_outcome_that_the_table_gives(decision: Decision) -> None:
    if decision.outcome == "no such option":
        command = typer.main.get_command(build_app()).commands["serve"]  # type: ignore[attr-defined]
        flags = {name for param in command.params for name in param.opts}
        assert FLAGS_NOBODY_HAS[decision.combination] not in flags
    elif decision.code == "model":
        with pytest.raises(ModelConfigError, match="architectures is"):
            parse_config({**RAW, "architectures": ["DeepseekV4ForCausalLM"]})
    else:
        expected = [decision.code] if decision.outcome == "refused" else []
        for asked in ASKED[decision.combination]:
            assert codes(asked) == expected, asked


def test_every_refusal_of_the_table_is_a_rule_with_a_remedy() -> None:
    remedies = {rule.code: rule.remedy for rule in RULES}
    refused = [d for d in DECISIONS if d.outcome == "refused" and d.code != "model"]
    assert all(remedies[decision.code] for decision in refused)
    assert all(d.code == "" for d in DECISIONS if d.outcome != "refused")
    assert len({d.combination for d in DECISIONS}) == len(DECISIONS)
