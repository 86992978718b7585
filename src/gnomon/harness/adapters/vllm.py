"""vLLM's OpenAI server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnomon.harness.adapters.dialogue import reasoning_parser, template_kwargs
from gnomon.harness.adapters.offload import Tier, render_tier
from gnomon.harness.adapters.protocol import (
    Command,
    Deployment,
    EngineMetric,
    FlagValue,
    LogPattern,
    Ports,
    Process,
    Readiness,
    Setting,
)
from gnomon.harness.adapters.render import environment, present, render_flags, single
from gnomon.harness.errors import Problem
from gnomon.harness.nouns import ServerAddress
from gnomon.harness.recipes.flags import set_flags
from gnomon.harness.recipes.memory import PoolRule
from gnomon.harness.recipes.place_spec import Parallelism
from gnomon.harness.recipes.point import Point
from gnomon.harness.recipes.quantities import GIB
from gnomon.harness.recipes.serving import Serving

BEHIND_ROUTER = 1
ROUTER_METRICS = 2
ROUTER_READY_S = 120.0
_DTYPES = {"bf16": "auto", "fp8": "fp8"}
_DEFAULT_UTILISATION = 0.9


def _metric(
    name: str, series: str, kind: Any, unit: Any, per: Any, labels: Mapping[str, str] | None = None
) -> EngineMetric:
    return EngineMetric(name, f"vllm:{series}", kind, unit, per, labels or {})


VLLM_METRICS = (
    _metric("prompt_tokens", "prompt_tokens", "counter", "tokens", "engine"),
    _metric("generation_tokens", "generation_tokens", "counter", "tokens", "engine"),
    _metric("prefix_cache_hits", "prefix_cache_hits", "counter", "tokens", "engine"),
    _metric("prefix_cache_queries", "prefix_cache_queries", "counter", "tokens", "engine"),
    _metric("external_hits", "external_prefix_cache_hits", "counter", "tokens", "engine"),
    _metric("external_queries", "external_prefix_cache_queries", "counter", "tokens", "engine"),
    *(
        _metric(
            f"prompt_tokens_{name}",
            "prompt_tokens_by_source",
            "counter",
            "tokens",
            "engine",
            {"source": source},
        )
        for name, source in {
            "cached": "local_cache_hit",
            "restored": "external_kv_transfer",
            "computed": "local_compute",
        }.items()
    ),
    _metric("kv_cache_usage", "kv_cache_usage_perc", "gauge", "fraction", "engine"),
    _metric("running", "num_requests_running", "gauge", "requests", "engine"),
    _metric("waiting", "num_requests_waiting", "gauge", "requests", "engine"),
    _metric("accepted_tokens", "spec_decode_num_accepted_tokens", "counter", "tokens", "engine"),
    _metric("verifications", "spec_decode_num_drafts", "counter", "steps", "engine"),
    _metric("offload_bytes_out", "kv_offload_bytes_gpu_to_cpu", "counter", "bytes", "engine"),
    _metric("offload_bytes_in", "kv_offload_bytes_cpu_to_gpu", "counter", "bytes", "engine"),
    _metric("offload_s_out", "kv_offload_time_gpu_to_cpu", "counter", "seconds", "engine"),
    _metric("offload_s_in", "kv_offload_time_cpu_to_gpu", "counter", "seconds", "engine"),
)
VLLM_LOG = (
    LogPattern("kv_pool", r"GPU KV cache size: ([\d,]+) tokens", "tokens", "engine"),
    LogPattern("attention_backend", r"Using (\w+) (?:attention )?backend", "", "rank"),
    LogPattern("moe_backend", r"Using (\w+) .*MoE backend", "", "rank", required=False),
)


@dataclass(frozen=True)
class VllmAdapter:
    """Adapter of ``vllm serve``."""

    name: str = "vllm"
    health_path: str = "/health"
    info_path: str | None = "/server_info?config_format=json"
    starts_here: bool = False
    log_patterns: tuple[LogPattern, ...] = VLLM_LOG
    metrics: tuple[EngineMetric, ...] = VLLM_METRICS

    def plan(self, model: str, flags: Mapping[str, FlagValue]) -> Command | None:
        """It has no planner of its own."""
        return None

    def serve(self, point: Point, address: ServerAddress) -> Command:
        """``vllm serve MODEL ...``, as if the second tier's ports began behind the server's."""
        return self._command(point, address, _tier(point, Ports(address.port)))

    def deploy(self, point: Point, address: ServerAddress, ports: Ports) -> Deployment:
        """Side services, the server, and a router in front of data-parallel ranks."""
        tier = _tier(point, ports)
        before = tier.before if tier is not None else ()
        files = tier.files if tier is not None else {}
        ready_s = point.deadlines.ready_s
        router = point.topology.router
        if router is None:
            command = self._command(point, address, tier)
            return single(command, address, self.health_path, ready_s, before, files)
        behind = ServerAddress(address.host, ports.at(BEHIND_ROUTER), address.model)
        ready = Readiness(behind.port, self.health_path, ready_s)
        server = Process("server", self._command(point, behind, tier), ready, files)
        argv = (
            *("vllm-router", "--host", address.host, "--port", str(address.port)),
            *("--worker-urls", behind.origin, "--policy", router.affinity),
            *("--intra-node-data-parallel-size", str(point.topology.tp), "--disable-retries"),
            *("--prometheus-port", str(ports.at(ROUTER_METRICS))),
        )
        front = Readiness(address.port, self.health_path, ROUTER_READY_S)
        return Deployment(
            (*before, server, Process("router", Command(argv, {}), front, {})), address
        )

    def _command(self, point: Point, address: ServerAddress, tier: Tier | None) -> Command:
        argv = (
            *("vllm", "serve", point.model.path),
            *("--host", address.host, "--port", str(address.port)),
            *("--served-model-name", address.model),
            *render_flags(arguments(point, point.topology, tier)),
        )
        env = {"PYTHONNOUSERSITE": "1", "VLLM_SERVER_DEV_MODE": "1"}
        env["VLLM_ENGINE_READY_TIMEOUT_S"] = f"{point.deadlines.ready_s:g}"
        return Command(argv, environment(point.engine, env, tier.env if tier is not None else {}))

    def settings(self, point: Point, plan: Mapping[str, Any]) -> tuple[Setting, ...]:
        """What the server's configuration must say."""
        shape, drafted = point.topology, point.drafted
        asked: dict[str, Any] = {
            "parallel_config.tensor_parallel_size": 1 if shape.dp_attention else shape.tp,
            "parallel_config.data_parallel_size": shape.tp if shape.dp_attention else shape.dp,
            "parallel_config.pipeline_parallel_size": shape.pp,
            "parallel_config.enable_expert_parallel": shape.ep > 1 or shape.dp_attention,
            "cache_config.cache_dtype": _DTYPES.get(point.kv_layout),
            "cache_config.block_size": point.kv.block_size and point.kv.block_size.value,
            "cache_config.enable_prefix_caching": point.kv.prefix_caching
            and point.kv.prefix_caching.value,
            "scheduler_config.max_num_seqs": point.rank_sequences(point.concurrency),
            "scheduler_config.max_num_batched_tokens": point.limits.max_num_batched_tokens
            and point.limits.max_num_batched_tokens.value,
            "model_config.max_model_len": point.longest_request,
            "speculative_config.num_speculative_tokens": drafted and drafted.tokens,
            "speculative_config.method": drafted and drafted.method,
        }
        return tuple(
            Setting(path.rpartition(".")[2], value, f"vllm_config.{path}")
            for path, value in present(asked).items()
        )

    def pool_rule(self, serving: Serving) -> PoolRule:
        """A fraction of the device for weights, what it profiles, and the pool."""
        flags = set_flags(serving.engine.settings)
        return PoolRule(
            "budget",
            fraction=flags.get("gpu_memory_utilization", _DEFAULT_UTILISATION),
            offloaded_weights=offloaded_weights(serving),
            default_index="bf16",
        )

    def refusals(self, point: Point) -> tuple[Problem, ...]:
        """Combinations that fail in its initialisation, or serve badly without a word."""
        return (*_draft_kernels(point), *_needs_router(point))


def arguments(
    point: Point,
    ranks: Parallelism,
    tier: Tier | None,
    flags: Mapping[str, Any] | None = None,
    transfer: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Arguments of one vLLM server or worker, by name.

    Args:
        point: what is served.
        ranks: parallelism of this server.
        tier: of the caches.
        flags: the engine's own; those of the recipe by default.
        transfer: value of ``--kv-transfer-config``; the tier's by default.
    """
    kv, limits, model = point.kv, point.limits, point.model
    flags = dict(set_flags(point.engine.settings) if flags is None else flags)
    attention = dict(flags.pop("attention_config", {}))
    draft_backend = flags.pop("draft_attention_backend", None)
    if kv.index_layout is not None and kv.index_layout.value != "auto":
        attention["indexer_kv_dtype"] = kv.index_layout.value
    if transfer is None and tier is not None:
        transfer = tier.connector
    return present(
        {
            **_parallel(ranks),
            "kv_cache_dtype": _DTYPES[point.kv_layout] if kv.layout is not None else None,
            "block_size": kv.block_size and kv.block_size.value,
            "enable_prefix_caching": kv.prefix_caching.value if kv.prefix_caching else None,
            "max_model_len": limits.max_model_len and limits.max_model_len.value,
            "max_num_seqs": point.rank_sequences(point.concurrency, ranks),
            "max_num_batched_tokens": limits.max_num_batched_tokens
            and limits.max_num_batched_tokens.value,
            "max_cudagraph_capture_size": point.graph_tokens(point.concurrency, ranks),
            **flags,
            "attention_config": attention or None,
            "speculative_config": speculative_config(point, draft_backend),
            "enable_auto_tool_choice": True if model.parsers is not None else None,
            "tool_call_parser": model.parsers and model.parsers.tool,
            "reasoning_parser": reasoning_parser(point),
            "default_chat_template_kwargs": template_kwargs(point),
            "kv_transfer_config": transfer,
        }
    )


def speculative_config(point: Point, draft_backend: str | None) -> dict[str, Any] | None:
    """Value of ``--speculative-config``; only a load profile forces acceptance."""
    drafted = point.drafted
    if drafted is None:
        return None
    config: dict[str, Any] = {
        "method": drafted.method,
        "model": drafted.draft.path,
        "num_speculative_tokens": drafted.tokens,
    }
    if draft_backend is not None:
        config["attention_backend"] = draft_backend
    if drafted.sampling == "probabilistic":
        config["draft_sample_method"] = "probabilistic"
        config["rejection_sample_method"] = "block"
    if point.forced is not None:
        config["rejection_sample_method"] = "synthetic"
        config["synthetic_acceptance_length"] = point.forced.length
    return config


def offloaded_weights(serving: Serving) -> int:
    """Bytes of weights one rank keeps in host memory (``--cpu-offload-gb`` counts GiB)."""
    return int(set_flags(serving.engine.settings).get("cpu_offload_gb", 0) * GIB)


def _parallel(ranks: Parallelism) -> dict[str, Any]:
    attention_dp = ranks.dp_attention
    data = ranks.tp if attention_dp else ranks.dp
    return {
        "tensor_parallel_size": 1 if attention_dp else ranks.tp,
        "pipeline_parallel_size": ranks.pp if ranks.pp > 1 else None,
        "data_parallel_size": data if data > 1 else None,
        "enable_expert_parallel": True if attention_dp or ranks.ep > 1 else None,
        "decode_context_parallel_size": ranks.dcp if ranks.dcp > 1 else None,
        "prefill_context_parallel_size": ranks.pcp if ranks.pcp > 1 else None,
    }


def _tier(point: Point, ports: Ports) -> Tier | None:
    return render_tier(point, ports, offloaded_weights(point))


def _draft_kernels(point: Point) -> tuple[Problem, ...]:
    """FlashInfer serves pages of 128 tokens only by kernels that need grouped queries."""
    if point.drafted is None or point.drafted.draft.attention != "mha":
        return ()
    flags = set_flags(point.engine.settings)
    target = flags.get("attention_config", {}).get("backend", flags.get("attention_backend"))
    if flags.get("draft_attention_backend", target) != "FLASHINFER":
        return ()
    return (
        Problem(
            "engine.flags.draft_attention_backend.value",
            "FlashInfer serves pages of 128 tokens only for grouped-query heads, and "
            f"{point.drafted.draft.path} has a key head for every query head.",
            "Use FLASH_ATTN for the draft, or a grouped-query head.",
        ),
    )


def _needs_router(point: Point) -> tuple[Problem, ...]:
    shape = point.topology
    if shape.router is not None or not (shape.dp_attention or shape.dp > 1):
        return ()
    return (
        Problem(
            "topology.router",
            "data-parallel ranks have caches of their own; without a router that keeps a session "
            "on its rank, prefix caching is lost.",
            "Add a router with consistent_hash.",
        ),
    )
