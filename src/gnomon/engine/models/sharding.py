"""Which part of each tensor a tensor-parallel rank holds. Pure: no torch.

Query heads, expert widths, dense widths and the vocabulary are divided among the ranks. KV heads
and index query heads are divided up to their number and then held by several ranks; the one index
key head, norms and the router are on every rank.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gnomon.engine.models.config import ModelConfig
from gnomon.engine.models.tensors import Shape
from gnomon.engine.models.weight_formats import GROUP, Formats, plain_formats

SIZES = (1, 2, 4, 8)
"""Tensor-parallel sizes the engine knows."""

_BY_ROWS = re.compile(r"\.(q_proj|gate_proj|up_proj|w1|w3)\.weight$|^lm_head\.|embed_tokens\.")
_BY_KV_HEADS = re.compile(r"\.(k_proj|v_proj|index_q_proj)\.weight$")
_BY_COLUMNS = re.compile(r"\.(o_proj|down_proj|w2)\.weight$")


def kv_heads_of_rank(config: ModelConfig, ranks: int) -> int:
    """KV heads a rank holds; beyond their number each is held by several ranks."""
    return max(1, config.num_kv_heads // ranks)


def shard(config: ModelConfig, name: str, shape: Shape, rank: int, ranks: int) -> tuple[slice, ...]:
    """The part of a released tensor that a rank holds, one slice a dim.

    Args:
        config: the model; :func:`sharding_problems` must be empty for it.
        name: released name, without the ``language_model.`` prefix.
        shape: of the whole tensor.
        rank: 0 to ``ranks - 1``.
        ranks: tensor-parallel size.
    """
    whole = [slice(0, size) for size in shape]
    if _BY_ROWS.search(name):
        whole[0] = _share(shape[0], rank, ranks)
    elif _BY_KV_HEADS.search(name):
        heads = config.num_kv_heads
        copies = max(1, ranks // heads)
        whole[0] = _share(shape[0], rank // copies, min(ranks, heads))
    elif _BY_COLUMNS.search(name):
        whole[1] = _share(shape[1], rank, ranks)
    return tuple(whole)


def rank_config(config: ModelConfig, rank: int, ranks: int) -> ModelConfig:
    """The model as one rank holds it: its share of heads, widths and vocabulary."""
    if ranks == 1:
        return config
    kv_heads = kv_heads_of_rank(config, ranks)
    part = _share(config.vocab_size, rank, ranks)
    return replace(
        config,
        num_heads=config.num_heads // ranks,
        num_kv_heads=kv_heads,
        num_index_heads=kv_heads if config.num_index_heads else 0,
        dense_intermediate_size=config.dense_intermediate_size // ranks,
        expert_intermediate_size=config.expert_intermediate_size // ranks,
        shared_intermediate_size=config.shared_intermediate_size // ranks,
        vocab_size=part.stop - part.start,
    )


def rank_shape(config: ModelConfig, name: str, shape: Shape, ranks: int) -> Shape:
    """Shape of the largest part: that of rank 0."""
    return tuple(part.stop - part.start for part in shard(config, name, shape, 0, ranks))


def _share(size: int, rank: int, ranks: int) -> slice:
    each = -(-size // ranks)
    return slice(min(rank * each, size), min((rank + 1) * each, size))


def sharding_problems(
    config: ModelConfig, ranks: int, formats: Formats = plain_formats
) -> tuple[str, ...]:
    """Why a model cannot be divided among this many ranks; empty if it can."""
    if ranks not in SIZES:
        return (f"the size is {ranks}; it must be one of {', '.join(map(str, SIZES))}",)
    found = []
    if config.num_heads % ranks:
        found.append(f"{config.num_heads} query heads do not divide by {ranks}")
    if config.num_kv_heads % ranks and ranks % config.num_kv_heads:
        found.append(f"{config.num_kv_heads} KV heads neither divide by {ranks} nor divide it")
    for layers, what, width, sample in _divided_widths(config):
        if width % ranks:
            found.append(f"the {what} width {width} does not divide by {ranks}")
            continue
        packed = {fmt for i in layers if (fmt := formats(sample.format(i))) in GROUP}
        for fmt in sorted(packed, key=lambda f: f.value):
            if (width // ranks) % GROUP[fmt] and ranks > 1:
                found.append(
                    f"the {what} width {width} over {ranks} ranks cuts a {fmt.value} group of "
                    f"{GROUP[fmt]}"
                )
    return tuple(found)


def _divided_widths(config: ModelConfig) -> list[tuple[list[int], str, int, str]]:
    """Input widths that are divided: layers, what, width, a matrix divided that way."""
    layer = "model.layers.{}."
    dense = [i for i, one in enumerate(config.layers) if one.mlp == "dense"]
    moe = [i for i, one in enumerate(config.layers) if one.mlp == "moe"]
    every = list(range(config.num_layers))
    heads = config.num_heads * config.head_dim
    widths = [(every, "attention", heads, layer + "self_attn.o_proj.weight")]
    if dense:
        width = config.dense_intermediate_size
        widths.append((dense, "dense MLP", width, layer + "mlp.down_proj.weight"))
    if moe:
        prefix = layer + "block_sparse_moe."
        width = config.expert_intermediate_size
        widths.append((moe, "expert", width, prefix + "experts.0.w2.weight"))
        width = config.shared_intermediate_size
        widths.append((moe, "shared expert", width, prefix + "shared_experts.down_proj.weight"))
    return widths
