"""SGLang's server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnomon.harness.adapters.dialogue import reasoning_parser
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
from gnomon.harness.adapters.render import environment, present, render_flags, single
from gnomon.harness.errors import Problem
from gnomon.harness.nouns import ServerAddress
from gnomon.harness.recipes.flags import set_flags
from gnomon.harness.recipes.memory import PoolRule
from gnomon.harness.recipes.point import Point
from gnomon.harness.recipes.serving import Serving

KEEP_ALIVE_S = 900
"""Longer than the 300 s for which a session of the client may pause: the server's own 5 s cut the
pooled connection, which aborted warm-ups (InferenceX #2268)."""

_DTYPES = {"bf16": "auto", "fp8": "fp8_e4m3"}
_ALGORITHMS = {"eagle3": "EAGLE3", "mtp": "NEXTN", "dspark": "DSPARK"}
_DEFAULT_FRACTION = 0.88


def _metric(
    name: str, series: str, kind: Any, unit: Any, per: Any, labels: Mapping[str, str] | None = None
) -> EngineMetric:
    return EngineMetric(name, f"sglang:{series}", kind, unit, per, labels or {})


@dataclass(frozen=True)
class SglangAdapter:
    """Adapter of ``python -m sglang.launch_server``."""

    name: str = "sglang"
    health_path: str = "/health"
    info_path: str | None = "/get_server_info"
    starts_here: bool = False
    log_patterns: tuple[LogPattern, ...] = (
        LogPattern("kv_pool", r"max_total_num_tokens=(\d+)", "tokens", "rank"),
        LogPattern("attention_backend", r"[Uu]sing (\w+) attention backend", "", "server", False),
    )
    metrics: tuple[EngineMetric, ...] = (
        _metric("prompt_tokens", "prompt_tokens_total", "counter", "tokens", "server"),
        _metric("generation_tokens", "generation_tokens_total", "counter", "tokens", "server"),
        _metric(
            "prompt_tokens_cached",
            "cached_tokens_total",
            "counter",
            "tokens",
            "server",
            {"source": "device"},
        ),
        _metric(
            "prompt_tokens_restored",
            "cached_tokens_total",
            "counter",
            "tokens",
            "server",
            {"source": "host"},
        ),
        _metric("kv_cache_usage", "token_usage", "gauge", "fraction", "copy"),
        _metric("kv_pool_tokens", "max_total_num_tokens", "gauge", "tokens", "copy"),
        _metric("host_pool_tokens", "hicache_host_total_tokens", "gauge", "tokens", "copy"),
        _metric("host_pool_used", "hicache_host_used_tokens", "gauge", "tokens", "copy"),
        _metric("running", "num_running_reqs", "gauge", "requests", "copy"),
        _metric("waiting", "num_queue_reqs", "gauge", "requests", "copy"),
        _metric("acceptance_length", "spec_accept_length", "gauge", "tokens", "copy"),
    )

    def plan(self, model: str, flags: Mapping[str, FlagValue]) -> Command | None:
        """It has no planner of its own."""
        return None

    def serve(self, point: Point, address: ServerAddress) -> Command:
        """``python -m sglang.launch_server ...``."""
        argv = (
            *("python3", "-m", "sglang.launch_server", "--model-path", point.model.path),
            *("--host", address.host, "--port", str(address.port)),
            *("--served-model-name", address.model),
            *render_flags(_arguments(point)),
        )
        env = {"SGLANG_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S)}
        if point.forced is not None:
            env["SGLANG_SIMULATE_ACC_LEN"] = f"{point.forced.length:g}"
            env["SGLANG_SIMULATE_ACC_METHOD"] = "match-expected"
            env["SGLANG_SIMULATE_ACC_TOKEN_MODE"] = "real-draft-token"
        return Command(argv, environment(point.engine, env))

    def deploy(self, point: Point, address: ServerAddress, ports: Ports) -> Deployment:
        """One server; its second tier lives inside it."""
        command = self.serve(point, address)
        return single(command, address, self.health_path, point.deadlines.ready_s)

    def settings(self, point: Point, plan: Mapping[str, Any]) -> tuple[Setting, ...]:
        """What its server arguments must say."""
        drafted = point.drafted
        asked: dict[str, Any] = {
            "tp_size": point.topology.tp,
            "pp_size": point.topology.pp,
            "ep_size": point.topology.ep,
            "enable_dp_attention": point.topology.dp_attention,
            "kv_cache_dtype": _DTYPES.get(point.kv_layout),
            "page_size": point.kv.block_size and point.kv.block_size.value,
            "context_length": point.limits.max_model_len and point.limits.max_model_len.value,
            "max_running_requests": point.sequences(point.concurrency),
            "enable_hierarchical_cache": point.tier is not None,
            "speculative_num_steps": drafted and drafted.tokens,
        }
        return tuple(Setting(name, value, name) for name, value in present(asked).items())

    def pool_rule(self, serving: Serving) -> PoolRule:
        """A fraction of the device for weights and pool; graphs and the rest use what is left."""
        flags = set_flags(serving.engine.settings)
        fraction = flags.get("mem_fraction_static", _DEFAULT_FRACTION)
        return PoolRule("static", fraction=fraction, default_index="bf16")

    def refusals(self, point: Point) -> tuple[Problem, ...]:
        """A cache in host memory extends the prefix cache, so it needs one."""
        caching = point.kv.prefix_caching
        if point.tier is None or caching is None or caching.value:
            return ()
        return (
            Problem(
                "offload",
                "the hierarchical cache extends the prefix cache, which is off.",
                "Set kv.prefix_caching to true, or offload to none.",
            ),
        )


def _arguments(point: Point) -> dict[str, Any]:
    shape, kv, limits, model = point.topology, point.kv, point.limits, point.model
    verified = point.graph_tokens(point.concurrency)
    caching = kv.prefix_caching
    return present(
        {
            "tp_size": shape.tp,
            "pp_size": shape.pp if shape.pp > 1 else None,
            "dp_size": shape.tp if shape.dp_attention else (shape.dp if shape.dp > 1 else None),
            "enable_dp_attention": True if shape.dp_attention else None,
            "ep_size": shape.ep if shape.ep > 1 else None,
            "kv_cache_dtype": _DTYPES[point.kv_layout] if kv.layout is not None else None,
            "page_size": kv.block_size and kv.block_size.value,
            "disable_radix_cache": True if caching is not None and not caching.value else None,
            "context_length": limits.max_model_len and limits.max_model_len.value,
            "max_running_requests": point.sequences(point.concurrency),
            "max_prefill_tokens": limits.max_num_batched_tokens
            and limits.max_num_batched_tokens.value,
            # Its graph ladder counts sequences, whatever each verifies.
            "cuda_graph_max_bs": verified // point.verified_tokens if verified else None,
            **set_flags(point.engine.settings),
            **_drafts(point),
            "tool_call_parser": model.parsers and model.parsers.tool,
            "reasoning_parser": reasoning_parser(point),
            **_tier(point),
        }
    )


def _drafts(point: Point) -> dict[str, Any]:
    drafted = point.drafted
    if drafted is None:
        return {}
    return {
        "speculative_algorithm": _ALGORITHMS[drafted.method],
        "speculative_draft_model_path": drafted.draft.path,
        "speculative_num_steps": drafted.tokens,
        "speculative_eagle_topk": 1,
        # Counts the verified tokens: the drafts and the target's own.
        "speculative_num_draft_tokens": point.verified_tokens,
    }


def _tier(point: Point) -> dict[str, Any]:
    """The host pool is sized for each rank, in decimal gigabytes."""
    if point.tier is None:
        return {}
    return {
        "enable_hierarchical_cache": True,
        "hicache_size": rank_gigabytes(point),
        "hicache_write_policy": "write_through",
    }
