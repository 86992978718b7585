from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnomon.harness.adapters.catalogue import ADAPTERS
from gnomon.harness.recipes.expand import Expansion, Planned
from gnomon.harness.recipes.memory import PoolRule, plan_memory, token_bytes
from gnomon.harness.recipes.model_spec import CacheShape
from gnomon.harness.recipes.place_spec import Parallelism
from gnomon.harness.recipes.quantities import GIB, MIB

Expand = Callable[..., Expansion]

M3 = CacheShape(layers=60, kv_heads=4, head_dim=128, index_layers=57, index_dim=128)
M31 = CacheShape(layers=60, kv_heads=4, head_dim=128, index_layers=60, index_dim=128)


def only(expansion: Expansion) -> Planned:
    (planned,) = expansion.points
    return planned


def test_h100_at_095_with_a_draft_is_96_mib_short(expanded: Expand) -> None:
    """InferenceX #2423: the fraction was copied from a recipe without a draft."""
    planned = only(expanded(name="probes/minimax-m3-h100-095"))
    (problem,) = planned.refused
    assert "96 MiB short beside the engine's budget" in problem.message
    need = planned.memory.need
    assert need is not None
    assert round((need.outside - need.outside_room) / MIB) == 96
    assert need.pool > need.longest  # the pool itself would have been large enough


@pytest.mark.parametrize("change", [{"speculation": "none"}, {}])
def test_h100_fits_without_the_draft_or_at_090(change: dict[str, Any], expanded: Expand) -> None:
    if not change:
        assert expanded().standing
        return
    planned = only(expanded(change, "probes/minimax-m3-h100-095"))
    assert planned.memory.state == "fits"


def test_b200_at_tp_2_has_31_7_gib_where_one_request_needs_37_6(expanded: Expand) -> None:
    planned = only(expanded(name="probes/minimax-m3-b200-tp2"))
    need = planned.memory.need
    assert need is not None
    assert (round(need.pool / GIB, 1), round(need.longest / GIB, 1)) == (31.7, 37.6)
    assert "31.7 GiB" in planned.refused[0].message
    assert "37.6 GiB" in planned.refused[0].message


def test_a_shorter_context_makes_the_same_devices_enough(expanded: Expand) -> None:
    limits = {"max_model_len": {"value": 524288, "why": "half the context"}}
    assert only(expanded({"limits": limits}, "probes/minimax-m3-b200-tp2")).memory.state == "fits"


@pytest.mark.parametrize(
    ("shape", "tp", "kv", "index", "scales", "bytes_a_token"),
    [
        (M31, 1, "bf16", "bf16", 4, 138_240),
        (M31, 1, "fp8", "fp8", 4, 71_040),
        (M31, 2, "fp8", "fp8", 4, 39_360),
        (M31, 2, "mxfp4", "mxfp4", 4, 20_400),
        (M31, 4, "bf16", "bf16", 4, 46_080),
        (M31, 4, "bf16", "mxfp4", 4, 34_800),
        (M31, 8, "fp8", "fp8", 4, 23_520),
        (M31, 8, "fp8", "mxfp4", 4, 19_920),
        (M31, 4, "mxfp4", "mxfp4", 4, 12_240),
        (M31, 4, "nvfp4", "nvfp4", 4, 12_960),
        (M31, 1, "nvfp4", "nvfp4", 4, 38_880),
        (M3, 2, "fp8", "fp8", 0, 38_016),
    ],
)
def test_a_token_costs_what_the_layouts_say(
    shape: CacheShape, tp: int, kv: str, index: str, scales: int, bytes_a_token: int
) -> None:
    assert token_bytes(shape, Parallelism(tp=tp), kv, index, scales) == bytes_a_token


def test_a_rank_with_data_parallel_attention_keeps_every_head() -> None:
    split = token_bytes(M3, Parallelism(tp=4), "fp8", "fp8")
    whole = token_bytes(M3, Parallelism(tp=4, dp_attention=True), "fp8", "fp8")
    assert whole - split == 60 * 3 * 256
    assert token_bytes(M3, Parallelism(tp=4, dcp=4), "fp8", "fp8") == split / 4


@pytest.mark.parametrize(
    ("rule", "pool_gib", "room_gib"),
    [
        (PoolRule("budget", fraction=0.9), 162 - 31.3 - 2.5 - 9.9, 18),
        (PoolRule("budget", fraction=0.9, margin=0.02), 162 - 3.6 - 31.3 - 2.5 - 9.9, 18),
        (PoolRule("static", fraction=0.8), 144 - 31.3 - 2.5, 26.1),
        (PoolRule("free", fraction=0.5), 68.15, 68.15),
        (PoolRule("explicit", explicit=50 * GIB), 50.0, 86.3),
    ],
)
def test_engines_size_their_pools_by_different_rules(
    rule: PoolRule, pool_gib: float, room_gib: float, expanded: Expand
) -> None:
    """A device of 180 GiB, weights of 31.3 and a draft of 2.5 GiB a rank, by each rule."""
    change = {
        "speculation": {"draft": {"checkpoint_bytes": "20 GiB"}},
        "hardware": {"gpu_memory": "180 GiB"},
    }
    point = expanded(change, "minimax-m3-b200-vllm").points[0].point
    model = point.model.model_copy(update={"checkpoint_bytes": int(31.3 * 8 * GIB)})
    need = plan_memory(point.model_copy(update={"model": model}), rule, 1).need
    assert need is not None
    assert need.pool / GIB == pytest.approx(pool_gib, abs=0.1)
    assert need.outside_room / GIB == pytest.approx(room_gib, abs=0.1)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "atom", "dynamo-vllm", "gnomon"])
def test_every_engine_s_plan_can_be_refused(engine: str, expanded: Expand) -> None:
    """Twice the weights a device can hold leave nothing for caches, whatever the rule."""
    point = expanded().points[0].point
    model = point.model.model_copy(update={"checkpoint_bytes": 2 * 8 * point.hardware.gpu_memory})
    huge = point.model_copy(update={"model": model})
    if engine != point.engine.name:
        data = huge.model_dump(mode="json")
        data["engine"] = {"name": engine}
        huge = type(huge).model_validate(data)
    verdict = plan_memory(huge, ADAPTERS[engine].pool_rule(huge), 1)
    assert verdict.state == "refused"
    assert "GiB" in verdict.reasons[0]


def test_what_is_not_public_is_neither_priced_nor_published(expanded: Expand) -> None:
    planned = expanded(name="minimax-m3-mi355x-atom").points[0]
    assert planned.memory.state == "unpriced"
    assert "model.checkpoint_bytes" in planned.memory.reasons[0]
    assert any("cannot be priced" in reason for reason in planned.point.blockers)


def test_a_windowed_draft_pays_for_its_window_only(expanded: Expand) -> None:
    point = expanded().points[0].point
    rule = ADAPTERS["vllm"].pool_rule(point)

    def longest(window: int | None) -> int:
        assert point.drafted is not None
        assert isinstance(point.drafted.draft.cache, CacheShape)
        cache = point.drafted.draft.cache.model_copy(update={"window": window})
        draft = point.drafted.draft.model_copy(update={"cache": cache})
        drafted = point.drafted.model_copy(update={"draft": draft})
        need = plan_memory(point.model_copy(update={"speculation": drafted}), rule, 1).need
        assert need is not None
        return need.longest

    assert longest(None) - longest(4096) == 8 * 2 * 128 * (1048576 - 4096)


def test_the_workers_of_a_disaggregated_plan_are_priced_apart(expanded: Expand) -> None:
    name = "probes/minimax-m3-gb200-dynamo"
    arm = {
        "name": "uneven",
        "topology": {
            "prefill": {"workers": 1, "tp": 4},
            "decode": {"workers": 4, "tp": 1},
            "transfer": "nixl",
            "router": {"name": "dynamo", "version": "1.0", "affinity": "kv"},
        },
        "concurrency": [1],
    }
    planned = only(expanded({"arms": [arm]}, name))
    assert planned.refused[0].message.startswith("decode workers: ")
