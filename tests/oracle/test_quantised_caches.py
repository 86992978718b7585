"""A quantised cache loses what its rounding loses, and nothing else.

The fp32 oracle attends to, and selects by, the numbers the engine's pages decode to. (Letting the
oracle quantise its own keys would compare rounding decisions: two fp32 programs differ by 1e-6,
which moves a few values in a million to the neighbouring code.)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.oracle.paged import PagedModel, PagedSequence, same_blocks
from tests.oracle.peer import (
    SPARSE,
    load_engine,
    peer_model,
    random_ids,
    run_peer,
    save_text_only,
    tiny_config,
)
from transformers import DynamicCache

from gnomon.engine.options import CacheFormat

GEOMETRIES: dict[str, tuple[dict[str, Any], int]] = {
    "dense and sparse layers": ({}, 520),
    "released geometry": (
        {
            "head_dim": 128,
            "index_head_dim": 128,
            "index_block_size": 128,
            "num_hidden_layers": 2,
            "layer_types": [SPARSE] * 2,
            "mlp_layer_types": ["sparse"] * 2,
        },
        900,
    ),
}


class _SparsePages:
    """Stands in for one layer of the oracle's cache: hands out what the engine's pages hold."""

    def __init__(self, paged: PagedModel, seq: PagedSequence, layer: int) -> None:
        self.held = paged.cached(seq, layer)
        self.cache = paged.pools.layers[layer]
        self.moved = 0
        self.values = 0

    def update(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._count(k[0], self.held.k, self.cache.k_layout)
        self._count(v[0], self.held.v, self.cache.v_layout)
        return self.held.k[None], self.held.v[None]

    def update_index(self, index_k: torch.Tensor) -> torch.Tensor:
        assert self.held.index is not None
        self._count(index_k[0], self.held.index, self.cache.index_layout)
        return self.held.index[None]

    def _count(self, exact: torch.Tensor, held: torch.Tensor, layout: Any) -> None:
        """Count the values whose rounding differs between the two programs."""
        rounded = layout.dequantise(layout.quantise(exact), torch.float32)
        self.moved += int((rounded != held).sum())
        self.values += held.numel()


class EngineCache(DynamicCache):
    """A transformers cache that holds nothing itself."""

    def __init__(self, config: Any, paged: PagedModel, seq: PagedSequence) -> None:
        super().__init__(config=config)
        self.layers = [_SparsePages(paged, seq, i) for i in range(len(paged.pools.layers))]

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layers[layer_idx].update(key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0


@pytest.mark.parametrize("fmt", list(CacheFormat))
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_logits_equal_an_fp32_model_fed_the_dequantised_cache(
    geometry: str, fmt: CacheFormat, tmp_path: Path
) -> None:
    changes, length = GEOMETRIES[geometry]
    peer = peer_model(tiny_config(**changes))
    model = load_engine(save_text_only(peer, tmp_path))
    for seed in range(20):
        ids = random_ids(length, peer.config.vocab_size, seed)
        paged = PagedModel(model, fmt)
        seq = paged.sequence(ids)
        paged.prefill(seq, chunk=333)
        cache = EngineCache(peer.config, paged, seq)
        theirs = run_peer(peer, ids, cache)
        if theirs.margin > 1:
            break
    assert theirs.margin > 1
    logits = seq.all_logits()
    assert (logits - theirs.logits).abs().max() < 1e-3
    assert torch.equal(logits.argmax(-1), theirs.logits.argmax(-1))
    for layer, blocks in theirs.blocks.items():
        assert same_blocks(seq.all_blocks(layer), blocks)
    if fmt is not CacheFormat.FP32:
        moved = sum(layer.moved for layer in cache.layers)
        assert moved / sum(layer.values for layer in cache.layers) < 2e-3


@pytest.mark.parametrize("fmt", [CacheFormat.MXFP4, CacheFormat.NVFP4])
def test_decode_over_a_4_bit_cache_gives_the_tokens_of_one_prefill(
    fmt: CacheFormat, tmp_path: Path
) -> None:
    peer = peer_model(tiny_config())
    model = load_engine(save_text_only(peer, tmp_path))
    ids = random_ids(500, peer.config.vocab_size)
    paged = PagedModel(model, fmt)
    seq = paged.sequence(ids, extra=20)
    paged.prefill(seq)
    made = paged.greedy(seq, 20)
    again = PagedModel(model, fmt, seed=11)
    whole = again.sequence([*ids, *made])
    again.prefill(whole)
    assert whole.all_logits()[499:-1].argmax(-1).tolist() == made
