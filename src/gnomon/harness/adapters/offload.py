"""Second tiers of vLLM, each rendered from one budget in bytes.

The budget is what :func:`gnomon.harness.recipes.dram.dram_budget` allows the whole deployment on
one node. What a backend wants (bytes, decimal gigabytes, per rank or in all) is converted here and
nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gnomon.harness.adapters.protocol import Command, Ports, Process, Readiness
from gnomon.harness.adapters.render import compact
from gnomon.harness.recipes.place_spec import OffloadSpec
from gnomon.harness.recipes.point import Point
from gnomon.harness.recipes.quantities import GB, GIB

MASTER_PORT = 10
LMCACHE_PORT = 20
LMCACHE_HTTP_PORT = 60
SIDE_READY_S = 600.0
"""How long a side service may take: a pool of host memory is pinned before it answers."""


@dataclass(frozen=True)
class Tier:
    """A rendered second tier.

    Attributes:
        connector: value of ``--kv-transfer-config``.
        env: variables of the server.
        before: side services.
        files: that the server reads.
    """

    connector: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    before: tuple[Process, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def mooncake_rank_bytes(budget: int, ranks: int, spec: OffloadSpec, offloaded: int) -> int:
    """Bytes that one rank may lend to the store.

    Whole GiB, rounded down at each step: the budget less the checkpoint's page cache is shared by
    the ranks, and each rank gives up the weights it keeps in host memory and its local buffer.

    Args:
        budget: bytes of the deployment.
        ranks: that share it.
        spec: the recipe's offload section.
        offloaded: bytes of weights one rank keeps in host memory.

    Raises:
        ValueError: nothing is left.
    """
    shared = (budget // GIB - -(-spec.page_cache // GIB)) // ranks
    left = shared - -(-offloaded // GIB) - -(-spec.local_buffer // GIB)
    if left < 1:
        raise ValueError(
            f"a budget of {budget / GB:,.0f} GB leaves no cache for {ranks} ranks beside the page "
            "cache, the weights in host memory and the buffers; raise offload.dram_share"
        )
    return left * GIB


def render_tier(point: Point, ports: Ports, offloaded: int) -> Tier | None:
    """The tier of a point, None without one.

    Args:
        point: whose budget is known.
        ports: for side services.
        offloaded: bytes of weights one rank keeps in host memory.

    Raises:
        ValueError: vLLM has no such backend, or the budget is too small for it.
    """
    spec = point.tier
    if spec is None:
        return None
    if spec.backend == "vllm-simple":
        return _simple(point)
    if spec.backend == "mooncake":
        return _mooncake(point, spec, ports, offloaded)
    if spec.backend == "lmcache":
        return _lmcache(point, ports)
    raise ValueError(f"vLLM has no offload backend {spec.backend}")


def ranks_of(point: Point) -> int:
    """Ranks that share the tier of one node."""
    shape = point.topology
    replica = shape if shape.prefill is None else shape.prefill
    return min(replica.gpus, point.hardware.gpus_per_node or replica.gpus)


def rank_gigabytes(point: Point) -> int:
    """Whole decimal gigabytes of the budget for each rank.

    Raises:
        ValueError: less than one.
    """
    each = point.dram_bytes // ranks_of(point) // GB
    if each < 1:
        raise ValueError("less than 1 GB of host memory for each rank; raise offload.dram_share")
    return each


def _simple(point: Point) -> Tier:
    connector = {
        "kv_connector": "SimpleCPUOffloadConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "cpu_bytes_to_use": point.dram_bytes,
            "lazy_offload": True,
        },
    }
    return Tier(connector, {"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"})


def _mooncake(point: Point, spec: OffloadSpec, ports: Ports, offloaded: int) -> Tier:
    master = ports.at(MASTER_PORT)
    lent = mooncake_rank_bytes(point.dram_bytes, ranks_of(point), spec, offloaded)
    config = {
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": f"127.0.0.1:{master}",
        "global_segment_size": lent,
        "local_buffer_size": spec.local_buffer,
        "protocol": "rdma",
        "device_name": "",
    }
    argv = (
        *("mooncake_master", f"--rpc_port={master}"),
        *("--eviction_high_watermark_ratio=0.80", "--eviction_ratio=0.10"),
    )
    ready = Readiness(master, None, SIDE_READY_S)
    connector = {
        "kv_connector": "MooncakeStoreConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"load_async": True},
    }
    env = {
        "MOONCAKE_CONFIG_PATH": "{folder}/mooncake.json",
        "MC_WORKERS_PER_CTX": "4",
        "PYTHONHASHSEED": "0",  # block hashes must be equal in every process
    }
    before = (Process("mooncake-master", Command(argv, {}), ready, {}),)
    return Tier(connector, env, before, {"mooncake.json": compact(config)})


def _lmcache(point: Point, ports: Ports) -> Tier:
    ranks = ranks_of(point)
    each_gb = rank_gigabytes(point)
    before = []
    for rank in range(ranks):
        port, http = ports.at(LMCACHE_PORT + rank), ports.at(LMCACHE_HTTP_PORT + rank)
        argv = (
            *("lmcache", "server", "--port", str(port), "--http-port", str(http)),
            *("--l1-size-gb", str(each_gb), "--chunk-size", "256", "--eviction-policy", "LRU"),
        )
        ready = Readiness(http, "/health", SIDE_READY_S)
        before.append(Process(f"lmcache-{rank}", Command(argv, {"PYTHONHASHSEED": "0"}), ready, {}))
    connector = {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "lmcache.mp.host": "127.0.0.1",
            "lmcache.mp.port": ports.at(LMCACHE_PORT),
            "lmcache.mp.mq_timeout": 6000,
        },
    }
    return Tier(connector, {"PYTHONHASHSEED": "0"}, tuple(before))
