"""The memory plan: bytes of a block, how many blocks, and the weights beside them. No torch.

Every pool is priced by the geometry of its own pages (ROCm/ATOM #2962 shows what happens when a
draft is priced by the target's): a layer that reuses a selection owns no index page and pays for
none, and layers of different formats add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnomon.engine.errors import LayoutError
from gnomon.engine.layouts.geometry import LayerPages, PageGeometry, geometry
from gnomon.engine.models.config import LayerConfig, ModelConfig
from gnomon.engine.options import ComputeDtype, EngineOptions

_FP32 = 4
_WEIGHT_BYTES = {ComputeDtype.FLOAT32: 4, ComputeDtype.BFLOAT16: 2}


@dataclass(frozen=True)
class MemoryPlan:
    """What an engine would allocate.

    Attributes:
        num_blocks: blocks in every pool.
        block_size: tokens a block.
        block_bytes: bytes of one block over all layers.
        pool_bytes: ``num_blocks * block_bytes``.
        weight_bytes: bytes of the model's weights.
        max_model_len: most tokens of a request.
        tokens: tokens the pools hold.
        requests_at_max_len: requests of the maximum length the pools hold at once.
        limited_by: what decided ``num_blocks``: "num_blocks" (asked), "memory" (the budget) or
            "demand" (``max_num_seqs`` requests of the maximum length need no more).
        layout_problems: why a cache format cannot store this model; if there are any, no block
            can be priced and ``block_bytes`` is 0.
    """

    num_blocks: int
    block_size: int
    block_bytes: int
    pool_bytes: int
    weight_bytes: int
    max_model_len: int
    tokens: int
    requests_at_max_len: int
    limited_by: str
    layout_problems: tuple[str, ...] = ()


def layer_pages(config: ModelConfig, options: EngineOptions) -> tuple[LayerPages, ...]:
    """Pages of every layer, in layer order.

    Raises:
        LayoutError: a format cannot store the model's head or index dim.
    """
    kv = geometry(options.kv_cache_dtype, config.block_size, config.head_dim, "kv")
    index: PageGeometry | None = None
    if any(layer.owns_index for layer in config.layers):
        index = geometry(options.index_format, config.block_size, config.index_dim, "index")
    return tuple(
        LayerPages(config.num_kv_heads, kv, kv, index if layer.owns_index else None)
        for layer in config.layers
    )


def block_bytes(layers: Sequence[LayerPages]) -> int:
    """Bytes of one block over all layers: those of a target, a draft, or both together."""
    return sum(layer.block_bytes for layer in layers)


def plan_memory(
    config: ModelConfig, options: EngineOptions, device_kind: str = "cpu"
) -> MemoryPlan:
    """Plan the pools and weights of one process.

    Unless ``num_blocks`` is asked for, the pools take what the budget allows, but not more than
    ``max_num_seqs`` requests of the maximum length can use.

    Args:
        config: the model.
        options: what the user asked.
        device_kind: "cpu" or "cuda"; decides what ``dtype: auto`` means.
    """
    problems = _layout_problems(config, options)
    per_block = 0 if problems else block_bytes(layer_pages(config, options))
    max_len = options.max_model_len or config.max_position_embeddings
    per_request = -(-max_len // config.block_size)
    demand = options.max_num_seqs * per_request
    affordable = options.kv_cache_memory_bytes // per_block if per_block else demand
    if options.num_blocks is not None:
        num_blocks, limited_by = options.num_blocks, "num_blocks"
    else:
        num_blocks = min(affordable, demand)
        limited_by = "memory" if affordable < demand else "demand"
    return MemoryPlan(
        num_blocks=num_blocks,
        block_size=config.block_size,
        block_bytes=per_block,
        pool_bytes=num_blocks * per_block,
        weight_bytes=weight_bytes(config, options.dtype, device_kind),
        max_model_len=max_len,
        tokens=num_blocks * config.block_size,
        requests_at_max_len=num_blocks // per_request,
        limited_by=limited_by,
        layout_problems=problems,
    )


def weight_bytes(config: ModelConfig, dtype: ComputeDtype, device_kind: str = "cpu") -> int:
    """Bytes of the weights as loaded: norms and routers in fp32, the rest in the compute dtype.

    Args:
        config: the model.
        dtype: compute dtype; AUTO is float32 on a CPU and bfloat16 elsewhere.
        device_kind: "cpu" or "cuda".
    """
    if dtype is ComputeDtype.AUTO:
        dtype = ComputeDtype.FLOAT32 if device_kind == "cpu" else ComputeDtype.BFLOAT16
    element = _WEIGHT_BYTES[dtype]
    embeddings = 2 * config.vocab_size * config.hidden_size * element
    layers = sum(_layer_weight_bytes(config, layer, element) for layer in config.layers)
    return embeddings + layers + config.hidden_size * _FP32


def _layer_weight_bytes(config: ModelConfig, layer: LayerConfig, element: int) -> int:
    h, d, di = config.hidden_size, config.head_dim, config.index_dim
    exact = 2 * h + 2 * d  # norms
    plain = (2 * config.num_heads + 2 * config.num_kv_heads) * d * h
    if layer.owns_index:
        exact += 2 * di
        plain += (config.num_index_heads + 1) * di * h
    if layer.mlp == "dense":
        plain += 3 * h * config.dense_intermediate_size
    else:
        exact += config.num_experts * (h + 1)  # router and its correction bias
        routed = config.num_experts * config.expert_intermediate_size
        plain += 3 * h * (routed + config.shared_intermediate_size)
    return exact * _FP32 + plain * element


def _layout_problems(config: ModelConfig, options: EngineOptions) -> tuple[str, ...]:
    """Why the asked formats cannot store the model; each problem once."""
    problems = []
    try:
        geometry(options.kv_cache_dtype, config.block_size, config.head_dim, "kv")
    except LayoutError as error:
        problems.append(f"keys and values: {error}")
    if any(layer.owns_index for layer in config.layers):
        try:
            geometry(options.index_format, config.block_size, config.index_dim, "index")
        except LayoutError as error:
            problems.append(f"index keys: {error}")
    return tuple(problems)
