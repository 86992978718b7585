"""The memory plan: weights, workspace, graphs and draft of a rank, and the blocks beside them.

No torch. Every pool is priced by the geometry of its own pages (ROCm/ATOM #2962 shows what happens
when a draft is priced by the target's): a layer that reuses a selection owns no index page and pays
for none, and layers of different formats add up. The block count is the smallest any rank can hold.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from gnomon.engine.cache.host_tier import STAGED_BLOCKS
from gnomon.engine.device import DeviceFacts
from gnomon.engine.draft_memory import DraftMemory, draft_bytes
from gnomon.engine.errors import LayoutError
from gnomon.engine.layouts.geometry import LayerPages, PageGeometry, geometry
from gnomon.engine.models.config import ModelConfig
from gnomon.engine.models.sharding import kv_heads_of_rank, rank_shape, sharding_problems
from gnomon.engine.models.tensors import tensor_shapes
from gnomon.engine.models.weight_formats import (
    Formats,
    WeightGroup,
    group_of,
    matrix_bytes,
    plain_formats,
)
from gnomon.engine.options import CacheFormat, ComputeDtype, EngineOptions, WeightFormat
from gnomon.engine.workspace import graph_bytes, workspace_bytes

SESSION_TOKENS = 128 * 1024
"""Tokens of the session that plans count: a long agentic conversation."""

CPU_POOL_BYTES = 1 << 29
"""Budget of the pools on a CPU unless asked: its memory is shared with everything else."""

_FP32 = 4
_ELEMENT_BYTES = {ComputeDtype.FLOAT32: 4, ComputeDtype.BFLOAT16: 2}


@dataclass(frozen=True)
class RankBudget:
    """What one rank may allocate.

    Attributes:
        device: UUID of a GPU, "cpu" for the host.
        usable_bytes: free memory, and no more than the asked part of the device.
        pool_bytes: what is left of it for cache pools; negative if nothing is.
        num_blocks: blocks that fit.
    """

    device: str
    usable_bytes: int
    pool_bytes: int
    num_blocks: int


@dataclass(frozen=True)
class MemoryPlan:
    """What an engine would allocate, in bytes of one rank.

    Attributes:
        num_blocks: blocks in every pool of every rank.
        block_size: tokens a block.
        block_bytes: bytes of one block over all layers.
        pool_bytes: ``num_blocks * block_bytes``.
        weight_bytes: the model's weights.
        max_model_len: most tokens of a request.
        tokens: tokens the pools hold.
        requests_at_max_len: requests of the maximum length the pools hold at once.
        limited_by: what decided ``num_blocks``: "num_blocks" (asked), "memory" (the budget) or
            "demand" (``max_num_seqs`` requests of the maximum length need no more).
        layout_problems: why a cache format cannot store this model; if there are any, no block
            can be priced and ``block_bytes`` is 0.
        sharding_problems: why the model cannot be divided among the ranks.
        ranks: tensor-parallel size.
        draft_bytes: weights and pool of a draft; 0 without one.
        workspace_bytes: activations of the largest step; 0 on a CPU, where nothing is reserved.
        graph_bytes: captured graphs; 0 on a CPU.
        host_bytes: host memory for evicted pages, over all ranks.
        host_blocks: blocks that hold them.
        budgets: one entry a rank.
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
    sharding_problems: tuple[str, ...] = ()
    ranks: int = 1
    draft_bytes: int = 0
    workspace_bytes: int = 0
    graph_bytes: int = 0
    host_bytes: int = 0
    host_blocks: int = 0
    budgets: tuple[RankBudget, ...] = field(default=())

    @property
    def fixed_bytes(self) -> int:
        """Everything of a rank but its pools."""
        return self.weight_bytes + self.draft_bytes + self.workspace_bytes + self.graph_bytes

    @property
    def longest_context(self) -> int:
        """Most tokens that one request could have if it were alone."""
        return min(self.tokens, self.max_model_len)

    @property
    def sessions(self) -> int:
        """Sessions of :data:`SESSION_TOKENS` that fit at once; 0 if no request may be so long."""
        if self.max_model_len < SESSION_TOKENS:
            return 0
        return self.num_blocks // -(-SESSION_TOKENS // self.block_size)


def layer_pages(config: ModelConfig, options: EngineOptions) -> tuple[LayerPages, ...]:
    """Pages of every layer on one rank, in layer order.

    Raises:
        LayoutError: a format cannot store the model's head or index dim.
    """
    kv = options.kv_cache_dtype
    key = geometry(kv, config.block_size, config.head_dim, "key")
    value = geometry(kv, config.block_size, config.head_dim, "value")
    index: PageGeometry | None = None
    if any(layer.owns_index for layer in config.layers):
        index = geometry(options.index_format, config.block_size, config.index_dim, "index")
    heads = kv_heads_of_rank(config, options.tensor_parallel_size)
    return tuple(
        LayerPages(heads, key, value, index if layer.owns_index else None)
        for layer in config.layers
    )


def block_bytes(layers: Sequence[LayerPages]) -> int:
    """Bytes of one block over all layers: those of a target, a draft, or both together."""
    return sum(layer.block_bytes for layer in layers)


def plan_memory(
    config: ModelConfig,
    options: EngineOptions,
    device: DeviceFacts | None = None,
    formats: Formats = plain_formats,
    draft: DraftMemory | None = None,
) -> MemoryPlan:
    """Plan every rank's memory.

    Unless ``num_blocks`` is asked for, the pools take what the budget allows, but not more than
    ``max_num_seqs`` requests of the maximum length can use. The budget is
    ``kv_cache_memory_bytes`` if given, else :data:`CPU_POOL_BYTES` on a CPU, and on a GPU what
    ``gpu_memory_utilization`` of its memory, or its free memory if that is less, leaves.

    Args:
        config: the model.
        options: what the user asked.
        device: where it would run; a CPU if left out.
        formats: of the weight matrices, as loaded.
        draft: a draft model to plan for.
    """
    on_gpu = device is not None and device.kind != "cpu"
    dtype = options.dtype
    if dtype is ComputeDtype.AUTO:
        dtype = ComputeDtype.BFLOAT16 if on_gpu else ComputeDtype.FLOAT32
    ranks = options.tensor_parallel_size
    problems = _layout_problems(config, options)
    divides = sharding_problems(config, ranks, formats)
    per_block = 0 if problems else block_bytes(layer_pages(config, options))
    weights = weight_bytes(config, dtype, formats, 1 if divides else ranks)
    element = _ELEMENT_BYTES[dtype]
    workspace = workspace_bytes(config, options, element) if on_gpu else 0
    if on_gpu and options.host_cache_bytes:
        workspace += STAGED_BLOCKS * per_block
    graphs = graph_bytes(config, options) if on_gpu else 0
    drafts = 0 if draft is None else draft_bytes(draft, options.max_num_seqs, ranks)
    fixed = weights + workspace + graphs + drafts
    budgets = _budgets(options, device, per_block, fixed)
    max_len = options.max_model_len or config.max_position_embeddings
    per_request = -(-max_len // config.block_size)
    demand = options.max_num_seqs * per_request
    affordable = min((budget.num_blocks for budget in budgets), default=0) if per_block else demand
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
        weight_bytes=weights,
        max_model_len=max_len,
        tokens=num_blocks * config.block_size,
        requests_at_max_len=num_blocks // per_request,
        limited_by=limited_by,
        layout_problems=problems,
        sharding_problems=divides,
        ranks=ranks,
        draft_bytes=drafts,
        workspace_bytes=workspace,
        graph_bytes=graphs,
        host_bytes=options.host_cache_bytes,
        host_blocks=options.host_cache_bytes // (per_block * ranks) if per_block else 0,
        budgets=budgets,
    )


def alternatives(
    config: ModelConfig,
    options: EngineOptions,
    device: DeviceFacts | None = None,
    formats: Formats = plain_formats,
    draft: DraftMemory | None = None,
) -> dict[CacheFormat, MemoryPlan]:
    """The plan that each cache layout would give, index keys in the same layout as K and V.

    ``num_blocks`` and the demand of ``max_num_seqs`` requests are left out, so that the plans say
    what fits.
    """
    plans = {}
    for fmt in (CacheFormat.BF16, CacheFormat.FP8, CacheFormat.MXFP4, CacheFormat.NVFP4):
        asked = options.model_copy(
            update={"kv_cache_dtype": fmt, "index_cache_dtype": None, "num_blocks": None}
        )
        plan = plan_memory(config, asked, device, formats, draft)
        fits = min((budget.num_blocks for budget in plan.budgets), default=0)
        update = asked.model_copy(update={"num_blocks": max(fits, 0)})
        plans[fmt] = plan_memory(config, update, device, formats, draft)
    return plans


@functools.lru_cache(maxsize=16)  # a plan and its alternatives ask for the same
def weight_bytes(
    config: ModelConfig,
    dtype: ComputeDtype,
    formats: Formats = plain_formats,
    ranks: int = 1,
) -> int:
    """Bytes of a rank's weights as loaded: norms and routers fp32, the rest as ``formats`` say.

    Args:
        config: the model.
        dtype: compute dtype of what is not quantised; not AUTO.
        formats: of the weight matrices.
        ranks: tensor-parallel size.
    """
    element = _ELEMENT_BYTES[dtype]
    unused = {
        f"model.layers.{i}.self_attn.index_{part}.weight"
        for i, layer in enumerate(config.layers)
        if layer.reuses_selection
        for part in ("q_proj", "k_proj", "q_norm", "k_norm")
    }
    total = 0
    for name, shape in tensor_shapes(config).items():
        if name in unused:
            continue
        held = rank_shape(config, name, shape, ranks)
        exact = group_of(name) is WeightGroup.EXACT
        if exact and (len(held) == 1 or name.endswith("block_sparse_moe.gate.weight")):
            rows, width = (held[0], held[1] if len(held) > 1 else 1)
            total += rows * width * _FP32
        else:
            fmt = WeightFormat.PLAIN if exact else formats(name)
            total += matrix_bytes(fmt, held[0], held[1], element)
    return total


def _budgets(
    options: EngineOptions, device: DeviceFacts | None, per_block: int, fixed: int
) -> tuple[RankBudget, ...]:
    """What each rank can hold; ranks without a GPU are left out (a rule refuses them)."""
    asked = options.kv_cache_memory_bytes
    if device is None or device.kind == "cpu":
        pool = asked or CPU_POOL_BYTES
        memory = pool + fixed if device is None else device.memory_bytes
        return (RankBudget("cpu", memory, pool, pool // per_block if per_block else 0),)
    found = []
    for gpu in device.gpus[: options.tensor_parallel_size]:
        usable = min(int(gpu.total_bytes * options.gpu_memory_utilization), gpu.free_bytes)
        pool = usable - fixed if asked is None else asked
        blocks = max(pool, 0) // per_block if per_block else 0
        found.append(RankBudget(gpu.uuid, usable, pool, blocks))
    return tuple(found)


def _layout_problems(config: ModelConfig, options: EngineOptions) -> tuple[str, ...]:
    """Why the asked formats cannot store the model; each problem once."""
    problems = []
    try:
        geometry(options.kv_cache_dtype, config.block_size, config.head_dim, "key")
    except LayoutError as error:
        problems.append(f"keys and values: {error}")
    if any(layer.owns_index for layer in config.layers):
        try:
            geometry(options.index_format, config.block_size, config.index_dim, "index")
        except LayoutError as error:
            problems.append(f"index keys: {error}")
    return tuple(problems)
