"""fp32 logits and selected blocks equal those of transformers' minimax_m3_vl."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.oracle.paged import PagedModel, PagedSequence, same_blocks
from tests.oracle.peer import (
    FULL,
    SPARSE,
    PeerRun,
    load_engine,
    peer_model,
    random_ids,
    save_released,
    save_text_only,
    settled_run,
    tiny_config,
)
from transformers import MiniMaxM3SparseForConditionalGeneration, MiniMaxM3VLForCausalLM

from gnomon.engine.models.presets.write import write_checkpoint
from gnomon.engine.options import CacheFormat

TOLERANCE = 1e-3

LAYOUTS: dict[str, tuple[dict[str, Any], int]] = {
    "a dense layer, then two sparse ones": ({}, 520),
    "all sparse, one kv head": (
        {
            "layer_types": [SPARSE] * 3,
            "mlp_layer_types": ["sparse"] * 3,
            "num_key_value_heads": 1,
        },
        520,
    ),
    "sparse attention with MLP, dense attention with experts": (
        {"layer_types": [SPARSE, FULL, SPARSE], "mlp_layer_types": ["dense", "sparse", "dense"]},
        520,
    ),
    "four kv heads of four query heads": (
        {"num_key_value_heads": 4, "head_dim": 32, "index_head_dim": 32},
        520,
    ),
    "index wider than the head": ({"head_dim": 32, "index_head_dim": 128}, 520),
    "several local blocks": ({"index_local_blocks": 2}, 520),
    "released geometry, two kv heads": (
        {
            "head_dim": 128,
            "index_head_dim": 128,
            "index_block_size": 128,
            "layer_types": [SPARSE] * 2,
            "mlp_layer_types": ["sparse"] * 2,
            "num_hidden_layers": 2,
        },
        1000,
    ),
    "whole head rotates": (
        {
            "rotary_dim": 64,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 1.0,
            },
        },
        520,
    ),
    "no sparse layer": (
        {"layer_types": [FULL] * 3, "mlp_layer_types": ["dense", "sparse", "sparse"]},
        300,
    ),
}


def check(ours: PagedSequence, theirs: PeerRun) -> None:
    logits = ours.all_logits()
    assert (logits - theirs.logits).abs().max() < TOLERANCE
    assert torch.equal(logits.argmax(-1), theirs.logits.argmax(-1))
    for layer, blocks in theirs.blocks.items():
        assert same_blocks(ours.all_blocks(layer), blocks), f"layer {layer} selects other blocks"


@pytest.mark.parametrize("case", LAYOUTS)
def test_logits_and_selected_blocks_equal_the_oracles(case: str, tmp_path: Path) -> None:
    changes, length = LAYOUTS[case]
    peer = peer_model(tiny_config(**changes))
    ids, theirs = settled_run(peer, length)
    size, topk = peer.config.index_block_size, peer.config.index_topk_blocks
    assert not theirs.blocks or length > 1.9 * size * topk, "selection must drop blocks"

    ours = PagedModel(load_engine(save_text_only(peer, tmp_path)), CacheFormat.FP32)
    seq = ours.sequence(ids)
    ours.prefill(seq)
    check(seq, theirs)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[MiniMaxM3VLForCausalLM, Path]:
    peer = peer_model(tiny_config())
    return peer, save_text_only(peer, tmp_path_factory.mktemp("mixed"))


@pytest.mark.parametrize("shard_size", ["50GB", "150KB"])
def test_a_released_checkpoint_with_vision_tower_loads_as_the_same_text_model(
    mixed: tuple[MiniMaxM3VLForCausalLM, Path],
    tmp_path: Path,
    shard_size: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    peer, fused = mixed
    caplog.set_level("INFO")
    folder = save_released(peer, tmp_path, shard_size)
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (shard_size == "150KB")
    released, text_only = load_engine(folder), load_engine(fused)
    assert "text only: skipping" in caplog.text

    ids = random_ids(200, peer.config.vocab_size)
    runs = []
    for model in (released, text_only):
        paged = PagedModel(model, CacheFormat.FP32)
        seq = paged.sequence(ids)
        paged.prefill(seq)
        runs.append(seq.all_logits())
    assert torch.equal(*runs)


def test_the_nano_preset_is_the_model_that_transformers_reads(tmp_path: Path) -> None:
    folder = write_checkpoint("nano", 0, tmp_path / "nano")
    model = load_engine(folder)
    theirs = tmp_path / "with-small-vision-tower"
    shutil.copytree(folder, theirs)
    raw = json.loads((theirs / "config.json").read_text())
    raw["vision_config"] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
    }
    raw["projector_hidden_size"] = 32
    (theirs / "config.json").write_text(json.dumps(raw))
    whole = MiniMaxM3SparseForConditionalGeneration.from_pretrained(theirs, dtype=torch.float32)
    peer = peer_model(whole.config.text_config)
    peer.model.load_state_dict(whole.model.language_model.state_dict())
    peer.lm_head.load_state_dict(whole.lm_head.state_dict())

    ids, theirs_run = settled_run(peer, 900)
    paged = PagedModel(model, CacheFormat.FP32)
    seq = paged.sequence(ids)
    paged.prefill(seq)
    check(seq, theirs_run)


def test_a_layer_that_reuses_a_selection_attends_to_the_blocks_of_the_last_that_computed(
    tmp_path: Path,
) -> None:
    peer = peer_model(
        tiny_config(num_hidden_layers=4, layer_types=[SPARSE] * 4, mlp_layer_types=["sparse"] * 4)
    )
    save_text_only(peer, tmp_path)
    last: list[torch.Tensor] = []
    for i, layer in enumerate(peer.model.layers):
        compute = layer.self_attn.indexer.forward
        if i % 2 == 0:
            layer.self_attn.indexer.forward = lambda *a, compute=compute: (
                last.append(compute(*a)) or last[-1]
            )
        else:
            layer.self_attn.indexer.forward = lambda *a: last[-1]

    ids, theirs = settled_run(peer, 520)
    model = load_engine(tmp_path, use_index_cache=True, index_topk_freq=2)
    paged = PagedModel(model, CacheFormat.FP32)
    seq = paged.sequence(ids)
    paged.prefill(seq, chunk=100)
    check(seq, theirs)
    assert [layer.index is None for layer in paged.pools.layers] == [False, True, False, True]


def test_a_bfloat16_model_stays_near_the_float32_one_where_nothing_is_dropped(
    mixed: tuple[MiniMaxM3VLForCausalLM, Path],
) -> None:
    # Beyond that, near ties of block scores make bf16 logits useless as an oracle.
    _, folder = mixed
    ids = random_ids(64, 320)
    runs = []
    for dtype in ("float32", "bfloat16"):
        paged = PagedModel(load_engine(folder, dtype=dtype), CacheFormat.BF16)
        seq = paged.sequence(ids)
        paged.prefill(seq)
        runs.append(seq.all_logits())
    assert runs[1].dtype == torch.float32
    assert (runs[0] - runs[1]).abs().mean() < 0.1
