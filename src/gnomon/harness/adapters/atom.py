"""ATOM's OpenAI server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnomon.harness.adapters.dialogue import template_kwargs
from gnomon.harness.adapters.offload import rank_gigabytes
from gnomon.harness.adapters.protocol import (
    Command,
    Deployment,
    EngineMetric,
    FlagValue,
    LogPattern,
    Ports,
    Setting,
)
from gnomon.harness.adapters.render import compact, environment, present, render_value, single
from gnomon.harness.errors import Problem
from gnomon.harness.nouns import ServerAddress
from gnomon.harness.recipes.flags import set_flags
from gnomon.harness.recipes.memory import PoolRule
from gnomon.harness.recipes.point import Point
from gnomon.harness.recipes.serving import Serving

_DTYPES = {"bf16": "bf16", "fp8": "fp8", "mxfp4": "fp4"}
_UNDERSCORED = frozenset({"kv_cache_dtype", "enable_prefix_caching", "online_quant_config"})
"""Options that this server spells with underscores; the others have hyphens."""

_DEFAULT_UTILISATION = 0.9
_LADDER = (1, 2, 4, 8, 16, 32, 48, 64, 128, 256, 512)


def _metric(name: str, series: str, kind: Any, unit: Any) -> EngineMetric:
    return EngineMetric(name, f"atom:{series}", kind, unit, "engine", {})


@dataclass(frozen=True)
class AtomAdapter:
    """Adapter of ``python -m atom.entrypoints.openai_server``."""

    name: str = "atom"
    health_path: str = "/health"
    info_path: str | None = "/server_info"
    starts_here: bool = False
    log_patterns: tuple[LogPattern, ...] = ()
    metrics: tuple[EngineMetric, ...] = (
        _metric("prompt_tokens", "prompt_tokens", "counter", "tokens"),
        _metric("generation_tokens", "generation_tokens", "counter", "tokens"),
        _metric("prefix_cache_hits", "prefix_cache_cached_tokens", "counter", "tokens"),
        _metric("prefix_cache_queries", "prefix_cache_full_tokens", "counter", "tokens"),
        _metric("prompt_tokens_restored", "lmcache_loaded_tokens", "counter", "tokens"),
        _metric("kv_cache_usage", "kv_cache_usage_ratio", "gauge", "fraction"),
        _metric("running", "requests_running", "gauge", "requests"),
        _metric("waiting", "requests_waiting", "gauge", "requests"),
        _metric("draft_tokens", "mtp_draft_tokens", "counter", "tokens"),
        _metric("accepted_tokens", "mtp_accepted_tokens", "counter", "tokens"),
        _metric("acceptance_length", "mtp_average_tokens_per_forward", "gauge", "tokens"),
    )

    def plan(self, model: str, flags: Mapping[str, FlagValue]) -> Command | None:
        """It has no planner of its own."""
        return None

    def serve(self, point: Point, address: ServerAddress) -> Command:
        """``python -m atom.entrypoints.openai_server ...``."""
        argv = (
            *("python3", "-m", "atom.entrypoints.openai_server", "--model", point.model.path),
            *("--host", address.host, "--server-port", str(address.port)),
            *("--served-model-name", address.model),
            *_render(_arguments(point)),
        )
        return Command(argv, environment(point.engine, _tier_env(point)))

    def deploy(self, point: Point, address: ServerAddress, ports: Ports) -> Deployment:
        """One server; its second tier lives inside it."""
        command = self.serve(point, address)
        return single(command, address, self.health_path, point.deadlines.ready_s)

    def settings(self, point: Point, plan: Mapping[str, Any]) -> tuple[Setting, ...]:
        """What its description of itself must say."""
        asked: dict[str, Any] = {
            "tensor_parallel_size": point.topology.tp,
            "kv_cache_dtype": _DTYPES.get(point.kv_layout),
            "index_cache_dtype": _DTYPES.get(point.index_layout),
            "kv_cache_block_size": point.kv.block_size and point.kv.block_size.value,
            "max_num_seqs": point.sequences(point.concurrency),
            "num_speculative_tokens": point.drafted and point.drafted.tokens,
        }
        return tuple(Setting(name, value, name) for name, value in present(asked).items())

    def pool_rule(self, serving: Serving) -> PoolRule:
        """A fraction of the device, of which two hundredths are kept back."""
        flags = set_flags(serving.engine.settings)
        return PoolRule(
            "budget",
            fraction=flags.get("gpu_memory_utilization", _DEFAULT_UTILISATION),
            margin=0.02,
            scale_bytes=4,
            default_draft="bf16" if serving.kv_layout == "mxfp4" else None,
        )

    def refusals(self, point: Point) -> tuple[Problem, ...]:
        """What its 4-bit pages cannot do (ROCm/ATOM #2962)."""
        if "mxfp4" not in (point.kv_layout, point.index_layout):
            return ()
        shape, problems = point.topology, []
        block = point.kv.block_size.value if point.kv.block_size is not None else None
        if block != 128:
            problems.append(
                Problem("kv.block_size.value", "a 4-bit page is 128 tokens.", "Set it to 128.")
            )
        if shape.dcp > 1 or shape.pcp > 1:
            problems.append(
                Problem(
                    "topology",
                    "4-bit pages are not gathered over context-parallel ranks: a reader would see "
                    "rows that were never written.",
                    "Set dcp and pcp to 1.",
                )
            )
        return tuple(problems)


def _arguments(point: Point) -> dict[str, Any]:
    shape, kv, limits = point.topology, point.kv, point.limits
    graph = point.graph_tokens(point.concurrency)
    index = kv.index_layout.value if kv.index_layout is not None else "auto"
    flags = set_flags(point.engine.settings)
    return present(
        {
            "tensor_parallel_size": shape.tp,
            "pipeline_parallel_size": shape.pp if shape.pp > 1 else None,
            "enable_dp_attention": True if shape.dp_attention else None,
            "enable_expert_parallel": True if shape.dp_attention or shape.ep > 1 else None,
            "decode_context_parallel_size": shape.dcp if shape.dcp > 1 else None,
            "prefill_context_parallel_size": shape.pcp if shape.pcp > 1 else None,
            "kv_cache_dtype": _DTYPES[point.kv_layout] if kv.layout is not None else None,
            "index_cache_dtype": None if index == "auto" else _DTYPES[index],
            "block_size": kv.block_size and kv.block_size.value,
            "enable_prefix_caching": kv.prefix_caching.value if kv.prefix_caching else None,
            "max_model_len": limits.max_model_len and limits.max_model_len.value,
            "max_num_seqs": point.sequences(point.concurrency),
            "max_num_batched_tokens": limits.max_num_batched_tokens
            and limits.max_num_batched_tokens.value,
            "cudagraph_capture_sizes": _ladder(graph // point.verified_tokens) if graph else None,
            **flags,
            **_drafts(point),
            "default_chat_template_kwargs": template_kwargs(point),
            "kv_transfer_config": _connector(point),
        }
    )


def _drafts(point: Point) -> dict[str, Any]:
    drafted = point.drafted
    if drafted is None:
        return {}
    return {
        "method": drafted.method,
        "draft_model": drafted.draft.path,
        "num_speculative_tokens": drafted.tokens,
        "spec_decode_acceptance_length": point.forced.length if point.forced else None,
    }


def _ladder(largest: int) -> list[int]:
    """Its graphs are captured for numbers of sequences; the last is the largest batch."""
    return [*(size for size in _LADDER if size < largest), largest]


def _connector(point: Point) -> dict[str, Any] | None:
    if point.tier is None:
        return None
    return {"kv_connector": "lmcache_offload", "kv_role": "kv_both"}


def _tier_env(point: Point) -> dict[str, str]:
    """Its LMCache takes the decimal gigabytes of one rank."""
    if point.tier is None:
        return {}
    each = str(rank_gigabytes(point))
    return {"LMCACHE_LOCAL_CPU": "True", "LMCACHE_MAX_LOCAL_CPU_SIZE": each}


def _render(arguments: Mapping[str, Any]) -> list[str]:
    argv: list[str] = []
    for name, value in arguments.items():
        option = name if name in _UNDERSCORED else name.replace("_", "-")
        if isinstance(value, bool):
            argv.append(f"--{option}" if value else f"--no-{option}")
        else:
            argv.extend(
                (
                    f"--{option}",
                    compact(value) if isinstance(value, list | dict) else render_value(value),
                )
            )
    return argv
