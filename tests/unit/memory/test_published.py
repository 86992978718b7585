"""Plans for published models and described machines, against published figures."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gnomon.engine.device import GpuFacts, described_device, gpu_machine
from gnomon.engine.device_table import DEVICES
from gnomon.engine.draft_memory import DRAFTS, draft_bytes, draft_pages
from gnomon.engine.errors import OptionsError, StartupRefused
from gnomon.engine.memory import alternatives, block_bytes, layer_pages, plan_memory, weight_bytes
from gnomon.engine.models.config import load_config, parse_config
from gnomon.engine.models.presets.released import RELEASED, minimax_m3, minimax_m31
from gnomon.engine.models.sharding import SIZES, rank_shape, shard, sharding_problems
from gnomon.engine.models.tensors import tensor_shapes
from gnomon.engine.models.weight_formats import RELEASED_SCHEMES
from gnomon.engine.options import CacheFormat, ComputeDtype, EngineOptions
from gnomon.engine.startup import describe

M31, M3 = parse_config(minimax_m31()), parse_config(minimax_m3())
BF16 = ComputeDtype.BFLOAT16


def options(ranks: int = 4, **asked: object) -> EngineOptions:
    return EngineOptions.model_validate(
        {"model": "minimax-m3.1", "tensor_parallel_size": ranks, **asked}
    )


@pytest.mark.parametrize(
    ("ranks", "kv", "index", "expected"),
    [
        (1, "bf16", None, 17_694_720),
        (1, "fp8", None, 9_093_120),
        (1, "mxfp4", None, 4_700_160),
        (1, "nvfp4", None, 4_976_640),
        (2, "fp8", None, 5_038_080),
        (2, "mxfp4", None, 2_611_200),
        (4, "bf16", None, 5_898_240),
        (4, "bf16", "mxfp4", 4_454_400),
        (4, "fp8", None, 3_010_560),
        (4, "fp8", "mxfp4", 2_549_760),
        (4, "mxfp4", None, 1_566_720),
        (4, "nvfp4", None, 1_658_880),
        (8, "mxfp4", None, 1_566_720),  # four KV heads: each on two ranks
    ],
)
def test_a_block_of_a_rank_costs_what_is_published(
    ranks: int, kv: str, index: str | None, expected: int
) -> None:
    asked = options(ranks, kv_cache_dtype=kv, index_cache_dtype=index)
    assert block_bytes(layer_pages(M31, asked)) == expected


def test_m3_owns_no_index_pages_in_its_dense_layers() -> None:
    saved = block_bytes(layer_pages(M31, options())) - block_bytes(layer_pages(M3, options()))
    assert saved == 3 * 32_768


@pytest.mark.parametrize(
    ("scheme", "published_gb"),
    [("bf16", 854), ("mxfp8", 444), ("nvfp4", 250)],  # 250 GB are the 233 GiB of M3.1's 48 files
)
def test_weights_weigh_what_the_published_checkpoints_do(scheme: str, published_gb: int) -> None:
    planned = weight_bytes(M31, BF16, RELEASED_SCHEMES[scheme][1])
    assert planned == pytest.approx(published_gb * 1e9, rel=0.015)


def test_the_model_has_the_published_number_of_parameters() -> None:
    total = weight_bytes(M31, BF16) / 2
    assert total == pytest.approx(428e9, rel=0.005)


def test_mxfp4_holds_nearly_twice_the_blocks_of_fp8_on_four_h200() -> None:
    startup = describe(options(), described_device("h200", 4), "mxfp4")
    plans = startup.alternatives()
    blocks = {fmt: plan.num_blocks for fmt, plan in plans.items()}
    assert blocks[CacheFormat.MXFP4] >= 1.67 * blocks[CacheFormat.FP8]
    assert blocks[CacheFormat.NVFP4] > 1.67 * blocks[CacheFormat.FP8]
    assert blocks[CacheFormat.FP8] > 1.9 * blocks[CacheFormat.BF16]
    for plan in plans.values():
        used = plan.fixed_bytes + plan.pool_bytes
        usable = plan.budgets[0].usable_bytes
        assert used <= usable < used + plan.block_bytes
        assert plan.sessions == plan.num_blocks // 1024
        assert plan.longest_context == 1_048_576


@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize("scheme", RELEASED_SCHEMES)
def test_m31_divides_among_every_number_of_ranks(ranks: int, scheme: str) -> None:
    formats = RELEASED_SCHEMES[scheme][1]
    assert sharding_problems(M31, ranks, formats) == ()
    whole, part = weight_bytes(M31, BF16, formats), weight_bytes(M31, BF16, formats, ranks)
    assert whole / ranks <= part < whole / ranks * 1.03


def test_shards_tile_every_tensor_and_only_kv_heads_and_small_ones_repeat() -> None:
    config = replace(M31, layers=M31.layers[2:4], num_experts=1)
    for ranks in SIZES:
        for name, shape in tensor_shapes(config).items():
            parts = [shard(config, name, shape, rank, ranks) for rank in range(ranks)]
            sizes = [tuple(p.stop - p.start for p in part) for part in parts]
            assert sizes[0] == rank_shape(config, name, shape, ranks)
            for dim, size in enumerate(shape):
                covered = sorted({(part[dim].start, part[dim].stop) for part in parts})
                assert covered[0][0] == 0
                assert covered[-1][1] == size
                ends = itertools.pairwise(covered)
                assert all(a[1] == b[0] for a, b in ends), (name, ranks)
    kv = shard(config, "model.layers.0.self_attn.k_proj.weight", (512, 6144), 5, 8)
    assert kv[0] == slice(256, 384)  # the third head, which rank 4 also holds
    index_key = "model.layers.0.self_attn.index_k_proj.weight"
    assert shard(config, index_key, (128, 6144), 3, 4)[0] == slice(0, 128)


def test_a_width_that_would_cut_a_group_is_told() -> None:
    odd = replace(M31, expert_intermediate_size=1088)  # 1088 / 8 = 136 = 4.25 groups of 32
    formats = RELEASED_SCHEMES["mxfp4"][1]
    assert sharding_problems(odd, 8, formats) == (
        "the expert width 1088 over 8 ranks cuts a mxfp4 group of 32",
    )
    assert sharding_problems(odd, 2, formats) == ()


def gpu(uuid: str, free: int) -> GpuFacts:
    return GpuFacts(uuid, "NVIDIA H200", 150 * 10**9, free, "sm_90")


def test_ranks_with_different_free_memory_agree_on_the_smaller_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    machine = gpu_machine((gpu("GPU-a", 140 * 10**9), gpu("GPU-b", 70 * 10**9)))
    asked = options(2, max_model_len=131_072, kv_cache_dtype="mxfp4", max_num_seqs=1000)
    small = replace(M31, layers=M31.layers[3:11])
    plan = plan_memory(small, asked, machine)
    counts = [budget.num_blocks for budget in plan.budgets]
    assert counts[1] < counts[0]
    assert [b.usable_bytes for b in plan.budgets] == [135 * 10**9, 70 * 10**9]
    assert (plan.num_blocks, plan.limited_by) == (counts[1], "memory")
    startup = describe(options(4), described_device("h200", 4), "mxfp4")
    fits = startup.plan.num_blocks
    assert f"h200-3 {fits}; all take {fits}" in caplog.text


def test_what_a_rank_needs_beside_its_pools_is_taken_off_first() -> None:
    machine = described_device("h200", 4)
    plain = plan_memory(M31, options(), machine, RELEASED_SCHEMES["mxfp4"][1])
    bigger = options(max_num_batched_tokens=16_384, max_num_seqs=64)
    more = plan_memory(M31, bigger, machine, RELEASED_SCHEMES["mxfp4"][1], DRAFTS["dspark"])
    assert more.workspace_bytes > 7 * plain.workspace_bytes
    assert more.graph_bytes > plain.graph_bytes > 0
    assert more.draft_bytes > 0 == plain.draft_bytes
    assert more.budgets[0].num_blocks < plain.budgets[0].num_blocks
    spent = more.fixed_bytes - plain.fixed_bytes
    fewer = plain.budgets[0].pool_bytes - more.budgets[0].pool_bytes
    assert spent == fewer


def test_graphs_and_workspace_do_not_take_more_for_a_longer_context_than_a_step() -> None:
    short, long = (
        plan_memory(M31, options(max_model_len=n), described_device("h200", 4))
        for n in (32_768, 1_048_576)
    )
    assert short.workspace_bytes == long.workspace_bytes


def test_a_draft_is_priced_by_its_own_pages_and_window() -> None:
    draft = DRAFTS["dspark"]
    assert block_bytes(draft_pages(draft, 4)) == 327_680  # five bf16 layers of one head
    assert 1_566_720 + block_bytes(draft_pages(draft, 4)) == 1_894_400
    pool = draft_bytes(draft, 1, 4) - draft.weight_bytes // 4
    assert pool == 33 * 327_680  # whatever the context
    assert draft_bytes(draft, 10, 4) - draft.weight_bytes // 4 == 330 * 327_680


def test_a_host_tier_is_counted_in_blocks_of_all_ranks() -> None:
    asked = options(kv_cache_dtype="mxfp4", host_cache_bytes=100 * 10**9)
    plan = plan_memory(M31, asked, described_device("h200", 4), RELEASED_SCHEMES["mxfp4"][1])
    assert plan.host_blocks == 100 * 10**9 // (4 * 1_566_720)
    without = plan_memory(M31, options(kv_cache_dtype="mxfp4"), described_device("h200", 4))
    assert plan.workspace_bytes - without.workspace_bytes == 32 * 1_566_720


def test_reuse_frees_index_pages_and_weights_in_the_plan_too() -> None:
    asked = options(use_index_cache=True, index_topk_freq=4, kv_cache_dtype="mxfp4")
    startup = describe(asked, described_device("h200", 4), "mxfp4")
    assert startup.plan.block_bytes == 1_566_720 - 391_680
    plain = describe(options(kv_cache_dtype="mxfp4"), described_device("h200", 4), "mxfp4")
    saved = plain.plan.weight_bytes - startup.plan.weight_bytes
    index = 45 * ((128 + 128) * 6144 * 2 + 2 * 128 * 4)  # one query head a rank, and the key
    assert saved == index


def test_one_gpu_cannot_hold_what_four_can() -> None:
    with pytest.raises(StartupRefused) as caught:
        describe(options(1), described_device("h200", 1), "mxfp4")
    codes = {refusal.code for refusal in caught.value.refusals}
    assert codes == {"device-memory", "pool-too-small"}


@pytest.mark.parametrize(
    ("weights", "draft", "told"),
    [("int4", None, "--weights 'int4' is unknown"), (None, "eagle9", "--draft 'eagle9'")],
)
def test_unknown_weights_and_drafts_are_refused(
    weights: str | None, draft: str | None, told: str
) -> None:
    with pytest.raises(OptionsError, match=told):
        describe(options(), described_device("h200", 4), weights, draft)


def test_layouts_that_cannot_store_a_model_hold_no_blocks() -> None:
    odd = replace(M31, head_dim=120, layers=M31.layers[:1])
    plans = alternatives(odd, options(1), described_device("h200", 1))
    assert plans[CacheFormat.MXFP4].layout_problems
    assert plans[CacheFormat.MXFP4].num_blocks == 0 < plans[CacheFormat.BF16].num_blocks


@pytest.mark.parametrize("name", RELEASED)
def test_a_published_config_reads_without_a_problem(name: str) -> None:
    config = parse_config(RELEASED[name]())
    sparse = [layer.attention == "sparse" for layer in config.layers]
    assert sparse[3:] == [True] * 57
    assert sparse[:3] == [name == "minimax-m3.1"] * 3


def test_every_device_of_the_table_has_a_source_and_a_plausible_size() -> None:
    for key, spec in DEVICES.items():
        assert key == key.lower()
        assert 40e9 < spec.memory_bytes < 400e9
        assert spec.source


def test_a_folder_with_a_config_alone_can_be_planned(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(minimax_m31()))
    asked = EngineOptions(model=str(tmp_path), tensor_parallel_size=4)
    startup = describe(asked, described_device("h200", 4), "nvfp4")
    assert startup.config == load_config(tmp_path)
    assert startup.plan.weight_bytes == weight_bytes(M31, BF16, RELEASED_SCHEMES["nvfp4"][1], 4)
