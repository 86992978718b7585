"""TensorRT-LLM's ``trtllm-serve``: arguments, and a file of further options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gnomon.harness.adapters.acceptance import accepted_drafts
from gnomon.harness.adapters.dialogue import reasoning_parser
from gnomon.harness.adapters.protocol import (
    Command,
    Deployment,
    EngineMetric,
    FlagValue,
    LogPattern,
    Ports,
    Setting,
)
from gnomon.harness.adapters.render import environment, present, single
from gnomon.harness.errors import Problem
from gnomon.harness.nouns import ServerAddress
from gnomon.harness.recipes.flags import set_flags
from gnomon.harness.recipes.memory import PoolRule
from gnomon.harness.recipes.point import Point
from gnomon.harness.recipes.serving import Serving

OPTIONS_FILE = "options.yaml"
_DTYPES = {"bf16": "auto", "fp8": "fp8"}
_DEFAULT_FRACTION = 0.9


def _metric(name: str, series: str, kind: Any, unit: Any) -> EngineMetric:
    return EngineMetric(name, f"trtllm_{series}", kind, unit, "server", {})


@dataclass(frozen=True)
class TrtllmAdapter:
    """Adapter of ``trtllm-serve``."""

    name: str = "trtllm"
    health_path: str = "/health"
    info_path: str | None = None
    starts_here: bool = False
    log_patterns: tuple[LogPattern, ...] = (
        LogPattern("kv_pool", r"max tokens in paged KV cache \((\d+)\)", "tokens", "rank"),
        LogPattern("kv_pool_gib", r"Allocated ([\d.]+) GiB for max tokens", "GiB", "rank"),
    )
    metrics: tuple[EngineMetric, ...] = (
        _metric("requests", "request_success_total", "counter", "requests"),
        _metric("kv_cache_usage", "kv_cache_utilization", "gauge", "fraction"),
        _metric("prefix_cache_hit_rate", "kv_cache_hit_rate", "gauge", "fraction"),
    )

    def plan(self, model: str, flags: Mapping[str, FlagValue]) -> Command | None:
        """It has no planner of its own."""
        return None

    def serve(self, point: Point, address: ServerAddress) -> Command:
        """``trtllm-serve MODEL ...``; most settings are in the options file."""
        shape, limits, model = point.topology, point.limits, point.model
        arguments = present(
            {
                "backend": "pytorch",
                "host": address.host,
                "port": address.port,
                "tp_size": shape.tp,
                "pp_size": shape.pp if shape.pp > 1 else None,
                "ep_size": shape.ep if shape.ep > 1 else None,
                # Sessions ask several requests at a time: sizing it by sessions queues sub-agents.
                "max_batch_size": point.sequences(point.concurrency),
                "max_num_tokens": limits.max_num_batched_tokens
                and limits.max_num_batched_tokens.value,
                "max_seq_len": limits.max_model_len and limits.max_model_len.value,
                "tool_parser": model.parsers and model.parsers.tool,
                "reasoning_parser": reasoning_parser(point),
                "extra_llm_api_options": f"{{folder}}/{OPTIONS_FILE}",
            }
        )
        argv = ["trtllm-serve", model.path]
        for name, value in arguments.items():
            argv.extend((f"--{name}", str(value)))  # its options keep their underscores
        if set_flags(point.engine.settings).get("trust_remote_code"):
            argv.append("--trust_remote_code")
        env = {}
        if point.forced is not None:
            forced = accepted_drafts(point.forced.length)
            env["TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"] = f"{forced:g}"
        return Command(tuple(argv), environment(point.engine, env))

    def deploy(self, point: Point, address: ServerAddress, ports: Ports) -> Deployment:
        """One server and its options file."""
        files = {OPTIONS_FILE: yaml.safe_dump(options(point), sort_keys=False)}
        command = self.serve(point, address)
        ready_s = point.deadlines.ready_s
        return single(command, address, self.health_path, ready_s, files=files)

    def settings(self, point: Point, plan: Mapping[str, Any]) -> tuple[Setting, ...]:
        """It describes nothing: what it runs is read from its log."""
        return ()

    def pool_rule(self, serving: Serving) -> PoolRule:
        """A fraction of what is free once model and draft are loaded and profiled."""
        flags = set_flags(serving.engine.settings)
        fraction = flags.get("free_gpu_memory_fraction", _DEFAULT_FRACTION)
        return PoolRule("free", fraction=fraction, default_index="fp8")

    def refusals(self, point: Point) -> tuple[Problem, ...]:
        """Shapes its server cannot be asked for."""
        shape = point.topology
        if shape.dcp == 1 and shape.pcp == 1:
            return ()
        return (
            Problem("topology", "trtllm-serve takes no context parallelism here.", "Set it to 1."),
        )


def options(point: Point) -> dict[str, Any]:
    """Contents of the options file."""
    flags = set_flags(point.engine.settings)
    kv, drafted = point.kv, point.drafted
    graph = point.graph_tokens(point.concurrency)
    cache = present(
        {
            "dtype": _DTYPES[point.kv_layout] if kv.layout is not None else None,
            "free_gpu_memory_fraction": flags.get("free_gpu_memory_fraction"),
            "tokens_per_block": kv.block_size and kv.block_size.value,
            "enable_block_reuse": kv.prefix_caching.value if kv.prefix_caching else None,
            "block_reuse_policy": flags.get("block_reuse_policy"),
            # Bytes of one rank, from the budget: a constant for each topology is how a published
            # budget and the real pool came apart.
            "host_cache_size": point.dram_bytes // point.topology.gpus if point.tier else None,
        }
    )
    data: dict[str, Any] = present(
        {
            "kv_cache_config": cache or None,
            "enable_attention_dp": True if point.topology.dp_attention else None,
            "enable_chunked_prefill": flags.get("enable_chunked_prefill"),
            "stream_interval": flags.get("stream_interval"),
            "cuda_graph_config": {
                "enable_padding": True,
                "max_batch_size": graph // point.verified_tokens,
            }
            if graph
            else None,
        }
    )
    if "capacity_scheduler_policy" in flags:
        policy = flags["capacity_scheduler_policy"]
        data["scheduler_config"] = {"capacity_scheduler_policy": policy}
    if "moe_backend" in flags:
        data["moe_config"] = {"backend": flags["moe_backend"]}
    if drafted is not None:
        data["speculative_config"] = {
            "decoding_type": "Eagle3",
            "max_draft_len": drafted.tokens,
            "speculative_model": drafted.draft.path,
        }
    return data
