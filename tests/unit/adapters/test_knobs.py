"""Numbers that engines count differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.adapters.rendered import ROOT, expansion_of

from gnomon.harness.adapters.acceptance import acceptance_rate, accepted_drafts, length_of_counts
from gnomon.harness.adapters.catalogue import ADAPTERS
from gnomon.harness.adapters.offload import mooncake_rank_bytes
from gnomon.harness.recipes.place_spec import OffloadSpec
from gnomon.harness.recipes.point import Point
from gnomon.harness.recipes.quantities import GB, GIB
from gnomon.harness.sweep import deploy

Make = Callable[..., Point]


@pytest.fixture(scope="module")
def h100() -> Point:
    return expansion_of(ROOT / "recipes" / "minimax-m3-h100-vllm-2423.yaml").points[4].point


@pytest.fixture
def make(h100: Point) -> Make:
    """The H100 point at 16 sessions with sections changed, validated again."""

    def change(**sections: Any) -> Point:
        data = h100.model_dump(mode="json")
        for name, value in sections.items():
            data[name] = value
        return Point.model_validate(data)

    return change


def argument(point: Point, option: str) -> str | None:
    argv = deploy(point).of("server").command.argv
    return argv[argv.index(option) + 1] if option in argv else None


SGLANG = {
    "name": "sglang",
    "image": {"reference": "lmsysorg/sglang", "digest": "unknown"},
    "flags": {"mem_fraction_static": {"value": 0.8, "why": "graphs use what is left"}},
}
HICACHE = {"backend": "hicache", "dram_share": 0.8, "why": "the engine's own host pool"}


def test_engines_count_the_golden_length_each_in_their_way() -> None:
    assert accepted_drafts(2.78) == 1.78
    assert acceptance_rate(2.78, 3) == 0.5933
    assert acceptance_rate(2.51, 2) == 0.755


def test_a_realised_length_is_one_more_than_the_accepted_drafts_of_a_step() -> None:
    assert length_of_counts(178, 100) == pytest.approx(2.78)
    with pytest.raises(ValueError, match="no verification"):
        length_of_counts(0, 0)


@pytest.mark.parametrize(
    ("budget_gb", "offloaded_gib", "lent_gib"), [(1731, 26, 119), (1234, 0, 87)]
)
def test_a_mooncake_rank_lends_what_page_cache_weights_and_buffer_leave(
    budget_gb: int, offloaded_gib: int, lent_gib: int
) -> None:
    """The two published servers: H100 keeps 26 GiB of weights in host memory, H200 none."""
    spec = OffloadSpec(
        backend="mooncake",
        dram_share=0.8,
        page_cache=414 * GIB,
        local_buffer=4 * GIB,
        why="as the public recipes have it",
    )
    lent = mooncake_rank_bytes(budget_gb * GB, 8, spec, offloaded_gib * GIB)
    assert lent == lent_gib * GIB


def test_a_budget_that_leaves_a_rank_nothing_is_refused() -> None:
    spec = OffloadSpec(
        backend="mooncake", dram_share=0.1, page_cache=414 * GIB, why="too little of it"
    )
    with pytest.raises(ValueError, match="leaves no cache for 8 ranks"):
        mooncake_rank_bytes(400 * GB, 8, spec, 0)


def test_a_graph_ladder_counts_tokens_and_sequences_come_from_session_trees(h100: Point) -> None:
    assert h100.concurrency == 16
    assert argument(h100, "--max-num-seqs") == "32"
    assert argument(h100, "--max-cudagraph-capture-size") == "128"  # 32 sequences of 1 + 3 tokens


def test_a_data_parallel_rank_is_sized_for_its_share(make: Make) -> None:
    router = {"name": "vllm-router", "version": "0.1.14", "affinity": "consistent_hash"}
    point = make(topology={"tp": 8, "ep": 8, "dp_attention": True, "router": router})
    assert argument(point, "--max-num-seqs") == "4"
    assert argument(point, "--max-cudagraph-capture-size") == "16"
    assert argument(point, "--tensor-parallel-size") == "1"
    assert argument(point, "--data-parallel-size") == "8"
    front = deploy(point).of("router")
    assert front.command.argv[0] == "vllm-router"
    assert front.ready.port == deploy(point).address.port
    assert deploy(point).of("server").ready.port != front.ready.port


def test_data_parallel_ranks_without_a_router_are_refused(make: Make) -> None:
    point = make(topology={"tp": 8, "ep": 8, "dp_attention": True})
    assert [p.path for p in ADAPTERS["vllm"].refusals(point)] == ["topology.router"]


def test_a_draft_with_a_key_head_for_every_query_is_refused_on_flashinfer(make: Make) -> None:
    engine = make().engine.model_dump(mode="json")
    engine["flags"]["draft_attention_backend"] = {"value": "FLASHINFER", "why": "the default"}
    (problem,) = ADAPTERS["vllm"].refusals(make(engine=engine))
    assert "grouped-query" in problem.message
    assert ADAPTERS["vllm"].refusals(make()) == ()


def test_sglang_counts_steps_verified_tokens_and_gigabytes_of_a_rank(make: Make) -> None:
    point = make(engine=SGLANG, offload=HICACHE, dram_bytes=1731 * GB)
    server = deploy(point).of("server").command
    assert " ".join(server.argv[3:]) == (
        "--model-path MiniMaxAI/MiniMax-M3-MXFP8 --host 127.0.0.1 --port 8000 "
        "--served-model-name MiniMax-M3-MXFP8 --tp-size 8 --kv-cache-dtype fp8_e4m3 "
        "--page-size 128 --max-running-requests 32 --cuda-graph-max-bs 32 "
        "--mem-fraction-static 0.8 --speculative-algorithm EAGLE3 "
        "--speculative-draft-model-path Inferact/MiniMax-M3-EAGLE3 --speculative-num-steps 3 "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4 "
        "--tool-call-parser minimax_m3 --reasoning-parser minimax_m3 "
        "--enable-hierarchical-cache --hicache-size 216 --hicache-write-policy write_through"
    )
    assert server.env["SGLANG_SIMULATE_ACC_LEN"] == "2.83"
    assert int(server.env["SGLANG_TIMEOUT_KEEP_ALIVE"]) > 300  # the client's longest pause


def test_sglang_refuses_a_host_tier_without_a_prefix_cache(make: Make) -> None:
    kv = {"prefix_caching": {"value": False, "why": "to see it refused"}}
    point = make(engine=SGLANG, offload=HICACHE, kv=kv)
    assert [p.path for p in ADAPTERS["sglang"].refusals(point)] == ["offload"]


@pytest.mark.parametrize(
    ("block", "topology", "paths"),
    [
        (64, {"tp": 4}, ["kv.block_size.value"]),
        (128, {"tp": 4, "dcp": 2}, ["topology"]),
        (128, {"tp": 4}, []),
    ],
)
def test_atom_refuses_what_its_4_bit_pages_cannot_do(
    block: int, topology: dict[str, Any], paths: list[str], make: Make
) -> None:
    kv = {
        "block_size": {"value": block, "why": "what is asked"},
        "layout": {"value": "mxfp4", "why": "4-bit pages"},
    }
    point = make(engine={"name": "atom"}, topology=topology, kv=kv)
    assert [p.path for p in ADAPTERS["atom"].refusals(point)] == paths
    assert argument(point, "--kv_cache_dtype") == "fp4"


def test_our_engine_gets_the_budget_in_bytes(make: Make) -> None:
    tier = {"backend": "native", "dram_share": 0.5, "why": "the engine's own tier"}
    point = make(engine={"name": "gnomon"}, offload=tier, dram_bytes=8 * GB, topology={"tp": 1})
    assert argument(point, "--host-cache-bytes") == str(8 * GB)
    assert argument(make(engine={"name": "gnomon"}, offload="none"), "--host-cache-bytes") is None


def test_the_reasoning_parser_is_left_out_for_a_client_that_would_lose_the_thoughts(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gnomon.harness.adapters import dialogue

    assert argument(make(), "--reasoning-parser") == "minimax_m3"
    monkeypatch.setattr(dialogue, "ROUND_TRIPS", {**dialogue.ROUND_TRIPS, "aiperf": "content"})
    assert argument(make(), "--reasoning-parser") is None
    assert argument(make(), "--tool-call-parser") == "minimax_m3"


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_each_metric_of_an_engine_has_one_meaning(name: str) -> None:
    metrics = ADAPTERS[name].metrics
    assert len({metric.id for metric in metrics}) == len(metrics) > 0
    for metric in metrics:
        assert metric.unit != "fraction" or metric.kind == "gauge"


def test_a_replicated_pool_is_never_declared_as_a_sum() -> None:
    """SGLang's ranks each print the size of the same pool."""
    pools = {m.id: m.per for m in ADAPTERS["sglang"].metrics if "pool" in m.id}
    assert set(pools.values()) == {"copy"}


@pytest.mark.parametrize(
    ("engine", "name", "line", "value"),
    [
        ("vllm", "kv_pool", "INFO GPU KV cache size: 1,168,335 tokens", "1,168,335"),
        ("vllm", "attention_backend", "Using TRITON_ATTN backend.", "TRITON_ATTN"),
        ("sglang", "kv_pool", "max_total_num_tokens=452516, chunked", "452516"),
        (
            "trtllm",
            "kv_pool",
            "Allocated 41.61 GiB for max tokens in paged KV cache (665856).",
            "665856",
        ),
    ],
)
def test_a_log_pattern_finds_its_value(engine: str, name: str, line: str, value: str) -> None:
    import re

    pattern = next(p for p in ADAPTERS[engine].log_patterns if p.name == name)
    found = re.search(pattern.pattern, line)
    assert found is not None
    assert found[1] == value
