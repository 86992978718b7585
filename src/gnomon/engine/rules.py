"""Startup rules: which combinations of model, device and options cannot run, and what to change.

Nothing falls back: a combination either runs as asked or is refused, with every broken rule at
once. The table in the documentation is made from :data:`RULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gnomon.engine.device import DeviceFacts
from gnomon.engine.errors import Refusal
from gnomon.engine.memory import MemoryPlan
from gnomon.engine.models.config import ModelConfig
from gnomon.engine.options import EngineOptions


@dataclass(frozen=True)
class Facts:
    """Everything a rule may look at."""

    config: ModelConfig
    device: DeviceFacts
    options: EngineOptions
    plan: MemoryPlan


@dataclass(frozen=True)
class Rule:
    """One row of the table.

    Attributes:
        code: stable kebab-case identifier.
        refuses: what is refused, for the documentation.
        remedy: what to change.
        problem: the broken rule as a sentence with its numbers; None if it holds.
    """

    code: str
    refuses: str
    remedy: str
    problem: Callable[[Facts], str | None]


def check(
    config: ModelConfig, device: DeviceFacts, options: EngineOptions, plan: MemoryPlan
) -> tuple[Refusal, ...]:
    """Every broken rule, in the order of the table; empty if the engine can start."""
    facts = Facts(config, device, options, plan)
    found = ((rule, rule.problem(facts)) for rule in RULES)
    return tuple(Refusal(rule.code, problem, rule.remedy) for rule, problem in found if problem)


def _block_size(f: Facts) -> str | None:
    asked = f.options.block_size
    if asked is None or asked == f.config.block_size:
        return None
    return (
        f"--block-size is {asked}, but this model selects blocks of {f.config.block_size} tokens, "
        "and a cache page is one such block."
    )


def _cache_format(f: Facts) -> str | None:
    if not f.plan.layout_problems:
        return None
    return "The cache cannot store this model: " + "; ".join(f.plan.layout_problems) + "."


def _model_length(f: Facts) -> str | None:
    limit = f.config.max_position_embeddings
    if f.plan.max_model_len <= limit:
        return None
    return f"--max-model-len is {f.plan.max_model_len}, but the model has {limit} positions."


def _pool_too_small(f: Facts) -> str | None:
    needed = -(-f.plan.max_model_len // f.config.block_size)
    if f.plan.layout_problems or f.plan.num_blocks >= needed:
        return None
    return (
        f"A request of the full length of {f.plan.max_model_len} tokens needs {needed} cache "
        f"blocks, but the cache has {f.plan.num_blocks} ({f.plan.block_bytes:,} bytes each)."
    )


def _device_memory(f: Facts) -> str | None:
    plan, device = f.plan, f.device
    needed = plan.fixed_bytes + plan.pool_bytes
    if device.kind == "cpu":
        if needed + plan.host_bytes <= device.memory_bytes:
            return None
        host = f", and a host tier of {plan.host_bytes:,} bytes" if plan.host_bytes else ""
        return (
            f"Weights of {plan.weight_bytes:,} bytes and cache pools of {plan.pool_bytes:,} bytes"
            f"{host} do not fit the {device.memory_bytes:,} bytes of {device.name}."
        )
    short = [budget for budget in plan.budgets if needed > budget.usable_bytes]
    if not short:
        return None
    listed = ", ".join(f"{b.device} may use {b.usable_bytes:,}" for b in short)
    return (
        f"A rank needs {needed:,} bytes ({memory_words(plan)}), but {listed} "
        f"(--gpu-memory-utilization is {f.options.gpu_memory_utilization:g})."
    )


def memory_words(plan: MemoryPlan) -> str:
    """What a rank's memory goes to, with every number that is not zero."""
    parts = {
        "weights": plan.weight_bytes,
        "draft": plan.draft_bytes,
        "workspace": plan.workspace_bytes,
        "graphs": plan.graph_bytes,
    }
    words = [f"{what} {size:,}" for what, size in parts.items() if size]
    blocks = f"{plan.num_blocks:,} blocks of {plan.block_bytes:,}"
    return ", ".join([*words, f"caches {plan.pool_bytes:,} ({blocks})"])


def _tensor_parallel(f: Facts) -> str | None:
    if not f.plan.sharding_problems:
        return None
    return (
        f"--tensor-parallel-size {f.options.tensor_parallel_size} cannot divide this model: "
        + "; ".join(f.plan.sharding_problems)
        + "."
    )


def _ranks_on_cpu(f: Facts) -> str | None:
    ranks = f.options.tensor_parallel_size
    if ranks == 1 or f.device.kind != "cpu":
        return None
    return f"--tensor-parallel-size is {ranks}, but the CPU backend runs in one process."


def _gpu_count(f: Facts) -> str | None:
    ranks, gpus = f.options.tensor_parallel_size, len(f.device.gpus)
    if f.device.kind == "cpu" or ranks <= gpus:
        return None
    return f"--tensor-parallel-size is {ranks}, but {f.device.name} has {gpus} GPUs."


def _shared_gpu(f: Facts) -> str | None:
    if f.options.allow_shared_gpu:
        return None
    held = []
    for gpu in f.device.gpus[: f.options.tensor_parallel_size]:
        for process in gpu.processes:
            size = process.memory_bytes
            much = "an unknown amount" if size is None else f"{size:,} bytes"
            held.append(f"{gpu.uuid} by pid {process.pid} ({process.name}, {much})")
    return f"Other processes hold memory: {'; '.join(held)}." if held else None


def _context_parallel(f: Facts) -> str | None:
    names = (
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
        "index_context_parallel_size",
        "sequence_parallel_size",
    )
    asked = {name: getattr(f.options, name) for name in names}
    flags = [f"--{n.replace('_', '-')} {size}" for n, size in asked.items() if size > 1]
    if not flags:
        return None
    return f"{', '.join(flags)}: a rank holds whole contexts and all their index keys."


def _host_cache(f: Facts) -> str | None:
    asked, plan = f.options.host_cache_bytes, f.plan
    if not asked or plan.layout_problems:
        return None
    found = []
    if not f.options.enable_prefix_caching:
        found.append("prefix caching is off, so no page would ever be found again")
    if not plan.host_blocks:
        block = plan.block_bytes * plan.ranks
        found.append(f"a block takes {block:,} bytes of host memory")
    return f"--host-cache-bytes is {asked:,}, but {'; '.join(found)}." if found else None


def _no_effect(f: Facts) -> str | None:
    o, unused = f.options, []
    if f.device.kind == "cpu" and o.gpu_memory_utilization != _default("gpu_memory_utilization"):
        unused.append("--gpu-memory-utilization on a CPU")
    if f.device.kind == "cpu" and o.allow_shared_gpu:
        unused.append("--allow-shared-gpu on a CPU")
    if not o.host_cache_bytes and o.host_cache_mode != _default("host_cache_mode"):
        unused.append("--host-cache-mode without --host-cache-bytes")
    return f"{', '.join(unused)} would have no effect." if unused else None


def _default(option: str) -> object:
    return EngineOptions.model_fields[option].default


def _budget_of_requests(f: Facts) -> str | None:
    budget, requests = f.options.max_num_batched_tokens, f.options.max_num_seqs
    if budget >= requests:
        return None
    return (
        f"--max-num-batched-tokens is {budget}, so the {requests} requests of --max-num-seqs could "
        "not each gain a token in every step."
    )


def _local_block(f: Facts) -> str | None:
    if f.config.local_blocks >= 1:
        return None
    return (
        f"The model forces {f.config.local_blocks} local blocks, but a row must always see its "
        "own block."
    )


def _forced_blocks(f: Facts) -> str | None:
    forced = f.config.init_blocks + f.config.local_blocks
    if forced <= f.config.topk_blocks:
        return None
    return (
        f"The model forces {f.config.init_blocks} initial and {f.config.local_blocks} local "
        f"blocks, but selects only {f.config.topk_blocks} in all."
    )


def _reuse_options(f: Facts) -> str | None:
    if f.options.use_index_cache:
        return None
    names = ("index_topk_freq", "index_topk_pattern", "index_skip_topk_offset")
    changed = [name for name in names if getattr(f.options, name) != _default(name)]
    if not changed:
        return None
    flags = ", ".join("--" + name.replace("_", "-") for name in changed)
    return f"{flags} would have no effect, because selection reuse is off."


RULES: tuple[Rule, ...] = (
    Rule(
        "block-size",
        "a block size other than the model's sparse block",
        "Leave --block-size out, or set it to the model's block size.",
        _block_size,
    ),
    Rule(
        "cache-format",
        "a cache format whose groups do not divide the head or index dim",
        "Choose another --kv-cache-dtype or --index-cache-dtype.",
        _cache_format,
    ),
    Rule(
        "model-length",
        "a maximum length beyond the model's positions",
        "Lower --max-model-len.",
        _model_length,
    ),
    Rule(
        "pool-too-small",
        "a cache that cannot hold one request of the maximum length",
        "Lower --max-model-len, raise --kv-cache-memory-bytes (or --num-blocks), or choose a "
        "smaller --kv-cache-dtype.",
        _pool_too_small,
    ),
    Rule(
        "device-memory",
        "weights, workspace, graphs and cache pools larger than the device's memory",
        "Lower --kv-cache-memory-bytes (or --num-blocks), quantise the weights, raise "
        "--tensor-parallel-size, or use a larger machine.",
        _device_memory,
    ),
    Rule(
        "tensor-parallel",
        "a tensor-parallel size that heads, widths or weight groups do not divide into",
        "Choose a --tensor-parallel-size of 1, 2, 4 or 8 that divides the model.",
        _tensor_parallel,
    ),
    Rule(
        "ranks-on-cpu",
        "tensor parallel on the CPU backend",
        "Leave --tensor-parallel-size out.",
        _ranks_on_cpu,
    ),
    Rule(
        "gpu-count",
        "more ranks than GPUs",
        "Lower --tensor-parallel-size, or make more GPUs visible.",
        _gpu_count,
    ),
    Rule(
        "shared-gpu",
        "a GPU on which other processes hold memory",
        "End them, choose other GPUs with CUDA_VISIBLE_DEVICES, or add --allow-shared-gpu.",
        _shared_gpu,
    ),
    Rule(
        "context-parallel",
        "decode, prefill or index context parallelism, and sequence parallelism",
        "Leave these sizes at 1; --tensor-parallel-size divides heads instead.",
        _context_parallel,
    ),
    Rule(
        "host-cache",
        "a host tier too small for a block, or without prefix caching",
        "Raise --host-cache-bytes, leave prefix caching on, or leave the tier out.",
        _host_cache,
    ),
    Rule(
        "no-effect",
        "options of a GPU on a CPU, or of a host tier without one",
        "Leave them out.",
        _no_effect,
    ),
    Rule(
        "budget-below-requests",
        "a token budget smaller than the number of requests",
        "Raise --max-num-batched-tokens or lower --max-num-seqs.",
        _budget_of_requests,
    ),
    Rule(
        "no-local-block",
        "a model that does not force a row's own block",
        "Use a checkpoint with at least one local block.",
        _local_block,
    ),
    Rule(
        "forced-blocks",
        "more forced blocks than selected blocks",
        "Use a checkpoint whose initial and local blocks fit its selected blocks.",
        _forced_blocks,
    ),
    Rule(
        "reuse-options",
        "options of selection reuse while reuse is off",
        "Add --use-index-cache, or leave the other flags out.",
        _reuse_options,
    ),
)
