"""This project's own engine, started as a separate program and met only over HTTP."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
from gnomon.harness.recipes.flags import GnomonFlags, set_flags
from gnomon.harness.recipes.memory import PoolRule
from gnomon.harness.recipes.point import Point
from gnomon.harness.recipes.serving import Serving

_ATTESTED = frozenset(
    {
        *("block_size", "dtype", "enable_prefix_caching", "index_cache_dtype", "kv_cache_dtype"),
        *("max_model_len", "max_num_batched_tokens", "max_num_seqs", "num_blocks", "seed"),
    }
)
_FACT_NAMES = {"dtype": "compute_dtype"}

PLANNED_AT = {
    "kv_cache_dtype": "kv.layout",
    "index_cache_dtype": "kv.index_layout",
    "block_size": "kv.block_size",
    "enable_prefix_caching": "kv.prefix_caching",
    "max_model_len": "limits.max_model_len",
    "max_num_seqs": "limits.max_num_seqs",
    "max_num_batched_tokens": "limits.max_num_batched_tokens",
}
"""Where a recipe says what the engine calls by these names; other options are engine flags."""


def recipe_path(option: str) -> str | None:
    """Where a recipe says an option of ``gnomon serve``; None if it cannot."""
    if option == "host_cache_bytes":
        return "offload.dram_share"
    if option in PLANNED_AT:
        return f"{PLANNED_AT[option]}.value"
    return f"engine.flags.{option}.value" if option in GnomonFlags.model_fields else None


@dataclass(frozen=True)
class GnomonAdapter:
    """Adapter of ``gnomon serve``."""

    name: str = "gnomon"
    health_path: str = "/health"
    info_path: str | None = "/server_info"
    starts_here: bool = True
    log_patterns: tuple[LogPattern, ...] = ()
    metrics: tuple[EngineMetric, ...] = (
        EngineMetric("prompt_tokens", "gnomon:prompt_tokens", "counter", "tokens", "server", {}),
        EngineMetric(
            "generation_tokens", "gnomon:generation_tokens", "counter", "tokens", "server", {}
        ),
        EngineMetric(
            "prefix_cache_hits", "gnomon:prefix_cache_hits", "counter", "tokens", "server", {}
        ),
        EngineMetric(
            "prefix_cache_queries", "gnomon:prefix_cache_queries", "counter", "tokens", "server", {}
        ),
        EngineMetric("running", "gnomon:num_requests_running", "gauge", "requests", "server", {}),
        EngineMetric("waiting", "gnomon:num_requests_waiting", "gauge", "requests", "server", {}),
    )

    def plan(self, model: str, flags: Mapping[str, FlagValue]) -> Command:
        """``gnomon plan MODEL ... --json`` in this interpreter."""
        argv = (sys.executable, "-m", "gnomon", "plan", model, *render_flags(flags), "--json")
        return Command(argv, {})

    def serve(self, point: Point, address: ServerAddress) -> Command:
        """``gnomon serve MODEL ...`` in this interpreter; a key travels in the environment."""
        argv = (
            *(sys.executable, "-m", "gnomon", "serve", point.model.path),
            *("--host", address.host, "--port", str(address.port)),
            *("--served-model-name", address.model),
            *render_flags(options(point)),
        )
        return Command(argv, environment(point.engine, {"PYTHONUNBUFFERED": "1"}))

    def deploy(self, point: Point, address: ServerAddress, ports: Ports) -> Deployment:
        """One server, nothing beside it."""
        command = self.serve(point, address)
        return single(command, address, self.health_path, point.deadlines.ready_s)

    def settings(self, point: Point, plan: Mapping[str, Any]) -> tuple[Setting, ...]:
        """Everything the recipe sets, plus what follows from it and from the plan."""
        flags = options(point)
        asked: dict[str, FlagValue] = {
            name: value for name, value in flags.items() if name in _ATTESTED
        }
        asked["kv_cache_dtype"] = point.kv_layout
        asked["index_cache_dtype"] = point.index_layout
        if flags.get("dtype") == "auto":
            asked.pop("dtype", None)
        for name in ("num_blocks", "block_bytes"):
            if isinstance(plan.get(name), int):
                asked[name] = plan[name]
        return (
            Setting("engine", "gnomon", "engine"),
            *(
                Setting(name, value, f"facts.{_FACT_NAMES.get(name, name)}")
                for name, value in asked.items()
            ),
            Setting("speculation", "none", "facts.speculation"),
        )

    def pool_rule(self, serving: Serving) -> PoolRule:
        """The bytes it is given; its own planner knows more (``gnomon plan``)."""
        flags = set_flags(serving.engine.settings)
        return PoolRule(
            "explicit", explicit=int(flags.get("kv_cache_memory_bytes", 512 << 20)), scale_bytes=4
        )

    def refusals(self, point: Point) -> tuple[Problem, ...]:
        """What it cannot do yet; everything else is said by its own planner."""
        problems = []
        if point.topology.multinode or point.topology.total_gpus != 1:
            problems.append(
                Problem("topology", "the gnomon engine runs in one process.", "Set topology.tp: 1.")
            )
        if point.drafted is not None:
            problems.append(
                Problem("speculation", "the gnomon engine has no drafts yet.", "Set it to none.")
            )
        return tuple(problems)


def options(point: Point) -> dict[str, FlagValue]:
    """Options of ``gnomon serve`` that a point stands for, in the order of its help."""
    kv, limits = point.kv, point.limits
    flags = set_flags(point.engine.settings)
    planned = present(
        {
            "kv_cache_dtype": kv.layout and kv.layout.value,
            "index_cache_dtype": kv.index_layout and kv.index_layout.value,
            "dtype": flags.pop("dtype", None),
            "block_size": kv.block_size and kv.block_size.value,
            "max_model_len": limits.max_model_len and limits.max_model_len.value,
            "max_num_seqs": point.sequences(point.concurrency),
            "max_num_batched_tokens": limits.max_num_batched_tokens
            and limits.max_num_batched_tokens.value,
        }
    )
    caching = kv.prefix_caching
    after = {} if caching is None else {"enable_prefix_caching": caching.value}
    tier = {} if point.tier is None else {"host_cache_bytes": point.dram_bytes}
    seed = present({"seed": flags.pop("seed", None)})
    return {**planned, **flags, **tier, **after, **seed}
