"""vLLM workers behind a Dynamo frontend: aggregated, or prefill and decode apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
from gnomon.harness.adapters.render import environment, present, render_flags
from gnomon.harness.adapters.vllm import (
    VLLM_LOG,
    VLLM_METRICS,
    VllmAdapter,
    arguments,
    offloaded_weights,
)
from gnomon.harness.errors import Problem
from gnomon.harness.nouns import ServerAddress
from gnomon.harness.recipes.engine_spec import DynamoEngine
from gnomon.harness.recipes.flags import set_flags
from gnomon.harness.recipes.memory import PoolRule
from gnomon.harness.recipes.place_spec import Worker
from gnomon.harness.recipes.point import Point
from gnomon.harness.recipes.serving import Serving

WORKER_PORT = 100
FRONTEND_READY_S = 300.0
_CONNECTORS = {"nixl": "NixlConnector", "mooncake": "MooncakeConnector"}


@dataclass(frozen=True)
class DynamoAdapter:
    """Adapter of ``python -m dynamo.vllm`` workers and ``python -m dynamo.frontend``."""

    name: str = "dynamo-vllm"
    health_path: str = "/health"
    info_path: str | None = None
    starts_here: bool = False
    log_patterns: tuple[LogPattern, ...] = VLLM_LOG
    metrics: tuple[EngineMetric, ...] = VLLM_METRICS

    def plan(self, model: str, flags: Mapping[str, FlagValue]) -> Command | None:
        """It has no planner of its own."""
        return None

    def serve(self, point: Point, address: ServerAddress) -> Command:
        """The frontend: what clients talk to."""
        router = point.topology.router
        block = point.kv.block_size
        options = present(
            {
                "http_host": address.host,
                "http_port": address.port,
                "router_mode": {"kv": "kv", "random": "random"}.get(router.affinity)
                if router is not None
                else None,
                "kv_cache_block_size": block.value if block is not None else None,
            }
        )
        return Command(("python3", "-m", "dynamo.frontend", *render_flags(options)), {})

    def deploy(self, point: Point, address: ServerAddress, ports: Ports) -> Deployment:
        """Side services, every worker, then the frontend."""
        tier = render_tier(point, ports, offloaded_weights(point))
        processes = list(tier.before) if tier is not None else []
        for role, worker in _workers(point):
            for position in range(worker.workers):
                port = ports.at(WORKER_PORT + len(processes))
                processes.append(self._worker(point, role, position, worker, tier, port))
        front = Readiness(address.port, self.health_path, FRONTEND_READY_S)
        processes.append(Process("frontend", self.serve(point, address), front, {}))
        return Deployment(tuple(processes), address)

    def _worker(
        self, point: Point, role: str, position: int, worker: Worker, tier: Tier | None, port: int
    ) -> Process:
        engine = point.engine
        assert isinstance(engine, DynamoEngine)
        flags = set_flags(engine.flags)
        half = {"prefill": engine.prefill_flags, "decode": engine.decode_flags}.get(role)
        if half is not None:
            flags |= set_flags(half)
        options = arguments(point, worker, tier, flags, _transfer(point, role, tier))
        split = ("--disaggregation-mode", role) if point.topology.disaggregated else ()
        argv = (
            *("python3", "-m", "dynamo.vllm", "--model", point.model.path),
            *("--served-model-name", point.model.served_name),
            *split,
            *render_flags(_without_frontend_options(options)),
        )
        env = {"PYTHONNOUSERSITE": "1", "DYN_SYSTEM_PORT": str(port)}
        env["VLLM_ENGINE_READY_TIMEOUT_S"] = f"{point.deadlines.ready_s:g}"
        command = Command(argv, environment(engine, env, tier.env if tier is not None else {}))
        ready = Readiness(port, self.health_path, point.deadlines.ready_s)
        files = tier.files if tier is not None else {}
        return Process(f"{role}-{position}", command, ready, files)

    def settings(self, point: Point, plan: Mapping[str, Any]) -> tuple[Setting, ...]:
        """The frontend describes nothing; its workers are known by their logs."""
        return ()

    def pool_rule(self, serving: Serving) -> PoolRule:
        """That of its vLLM workers."""
        return VllmAdapter().pool_rule(serving)

    def refusals(self, point: Point) -> tuple[Problem, ...]:
        """Workers need a frontend that knows how to choose one, and a transfer it can render."""
        problems = []
        if not point.topology.multinode:
            problems.append(
                Problem("topology", "Dynamo serves workers.", "Write prefill and decode.")
            )
        if point.topology.router is None:
            problems.append(
                Problem("topology.router", "no router is named.", "Name it with its version.")
            )
        elif point.topology.router.affinity == "consistent_hash":
            problems.append(
                Problem(
                    "topology.router.affinity",
                    "its frontend has no consistent_hash.",
                    "Use kv or random.",
                )
            )
        if point.topology.transfer not in (None, *_CONNECTORS):
            problems.append(
                Problem(
                    "topology.transfer",
                    f"vLLM on NVIDIA has no connector for {point.topology.transfer}.",
                    f"Use one of: {', '.join(_CONNECTORS)}.",
                )
            )
        return tuple(problems)


def _workers(point: Point) -> tuple[tuple[str, Worker], ...]:
    shape = point.topology
    if shape.prefill is None or shape.decode is None:
        return ()
    if not shape.disaggregated:
        return (("worker", shape.prefill),)
    return (("prefill", shape.prefill), ("decode", shape.decode))


def _transfer(point: Point, role: str, tier: Tier | None) -> Mapping[str, Any] | None:
    """Connectors of a worker: the transfer, the tier (which prefill workers hold), or both."""
    shape = point.topology
    holds = tier is not None and role != "decode"
    connectors: list[Mapping[str, Any]] = []
    if shape.transfer is not None:
        connectors.append({"kv_connector": _CONNECTORS[shape.transfer], "kv_role": "kv_both"})
    if tier is not None and holds:
        connectors.append(tier.connector)
    if len(connectors) < 2:
        return connectors[0] if connectors else None
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"connectors": connectors},
    }


_PARSERS = {"tool_call_parser": "dyn_tool_call_parser", "reasoning_parser": "dyn_reasoning_parser"}


def _without_frontend_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Worker options: parsers run in the frontend and have its names."""
    return {
        _PARSERS.get(name, name): value
        for name, value in options.items()
        if name != "enable_auto_tool_choice"
    }
