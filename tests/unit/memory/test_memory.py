"""The memory plan: pages per layer, blocks from the budget, weights as they are loaded."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import pytest
import torch

from gnomon.engine.cache.pools import build_pools
from gnomon.engine.device import described_device
from gnomon.engine.errors import LayoutError
from gnomon.engine.memory import block_bytes, layer_pages, plan_memory, weight_bytes
from gnomon.engine.models.config import LayerConfig, ModelConfig
from gnomon.engine.models.weights import empty_weights
from gnomon.engine.options import CacheFormat, ComputeDtype, EngineOptions

SPARSE, DENSE = LayerConfig("sparse", "moe"), LayerConfig("dense", "dense")
REUSING = LayerConfig("sparse", "moe", reuses_selection=True)

SMALL = ModelConfig(
    architecture="MiniMaxM3SparseForConditionalGeneration",
    vocab_size=96,
    hidden_size=24,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    rotary_dim=16,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    max_position_embeddings=1000,
    num_index_heads=2,
    index_dim=64,
    block_size=16,
    topk_blocks=4,
    init_blocks=0,
    local_blocks=1,
    dense_intermediate_size=40,
    expert_intermediate_size=20,
    shared_intermediate_size=12,
    num_experts=6,
    num_experts_per_token=2,
    routed_scaling_factor=2.0,
    swiglu_alpha=1.702,
    swiglu_limit=7.0,
    swiglu_beta=1.0,
    layers=(DENSE, SPARSE, REUSING, SPARSE),
    eos_token_ids=(1,),
    bos_token_id=0,
    checkpoint_dtype="bfloat16",
)
ONE_RANK_OF_FOUR = replace(
    SMALL, num_kv_heads=1, head_dim=128, index_dim=128, block_size=128, layers=(SPARSE,) * 60
)


def options(**asked: object) -> EngineOptions:
    return EngineOptions.model_validate({"model": "any", **asked})


@pytest.mark.parametrize(
    ("kv", "index", "expected"),
    [
        ("mxfp4", None, 1_566_720),
        ("nvfp4", None, 1_658_880),
        ("fp8", None, 3_010_560),
        ("bf16", None, 5_898_240),
        ("bf16", "mxfp4", 4_454_400),
        ("fp8", "mxfp4", 2_549_760),
    ],
)
def test_one_rank_of_four_pays_the_published_price(kv, index, expected):
    asked = options(kv_cache_dtype=kv, index_cache_dtype=index)
    assert plan_memory(ONE_RANK_OF_FOUR, asked).block_bytes == expected


def test_reuse_on_three_layers_of_four_saves_a_quarter_of_the_block():
    reusing = replace(ONE_RANK_OF_FOUR, layers=(SPARSE, REUSING, REUSING, REUSING) * 15)
    asked = options(kv_cache_dtype="mxfp4")
    saved = 1_566_720 - block_bytes(layer_pages(reusing, asked))
    assert saved == 391_680


def test_only_layers_that_select_own_an_index_page():
    owned = [pages.index is not None for pages in layer_pages(SMALL, options())]
    assert owned == [False, True, False, True]


def test_index_and_head_dims_may_differ():
    pages = layer_pages(SMALL, options())[1]
    assert (pages.k.dim, pages.index and pages.index.dim) == (32, 64)


@pytest.mark.parametrize("fmt", CacheFormat)
def test_the_pools_take_exactly_what_was_planned(fmt):
    asked = options(kv_cache_dtype=fmt, num_blocks=7)
    plan = plan_memory(SMALL, asked)
    pools = build_pools(layer_pages(SMALL, asked), plan.num_blocks)
    assert pools.nbytes == plan.pool_bytes == 7 * plan.block_bytes
    assert pools.block_bytes == plan.block_bytes
    assert pools.sanitised_total() == 0


def test_the_budget_limits_the_blocks():
    per_block = plan_memory(SMALL, options()).block_bytes
    plan = plan_memory(SMALL, options(kv_cache_memory_bytes=10 * per_block + per_block - 1))
    assert (plan.num_blocks, plan.limited_by) == (10, "memory")
    assert plan.tokens == 160
    assert plan.requests_at_max_len == 0


def test_blocks_nobody_could_use_are_not_allocated():
    plan = plan_memory(SMALL, options(max_num_seqs=3, max_model_len=100))
    assert (plan.num_blocks, plan.limited_by) == (3 * 7, "demand")
    assert plan.requests_at_max_len == 3


def test_an_asked_number_of_blocks_is_taken_as_it_is():
    plan = plan_memory(SMALL, options(num_blocks=1000, kv_cache_memory_bytes=1))
    assert (plan.num_blocks, plan.limited_by) == (1000, "num_blocks")


def test_the_length_defaults_to_the_models():
    assert plan_memory(SMALL, options()).max_model_len == 1000
    assert plan_memory(SMALL, options(max_model_len=77)).max_model_len == 77


def test_formats_that_cannot_store_the_model_are_all_named():
    odd = replace(SMALL, head_dim=24, index_dim=40)
    asked = options(kv_cache_dtype="mxfp4", index_cache_dtype="nvfp4")
    problems = plan_memory(odd, asked).layout_problems
    assert len(problems) == 2
    assert "keys and values: a mxfp4" in problems[0]
    assert "index keys: a nvfp4" in problems[1]
    with pytest.raises(LayoutError):
        layer_pages(odd, asked)


def test_index_pages_nobody_owns_cannot_be_a_problem():
    odd = replace(SMALL, index_dim=40, layers=(DENSE,))
    assert plan_memory(odd, options(kv_cache_dtype="mxfp4")).layout_problems == ()


def tensor_bytes(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, tuple):
        return sum(tensor_bytes(v) for v in value)
    if is_dataclass(value):
        return sum(tensor_bytes(getattr(value, f.name)) for f in fields(value))
    return 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_priced_as_they_are_loaded(dtype):
    loaded = empty_weights(SMALL, dtype, torch.device("cpu"))
    asked = ComputeDtype(str(dtype).removeprefix("torch."))
    assert weight_bytes(SMALL, asked) == tensor_bytes(loaded)


def test_auto_is_float32_on_a_cpu_and_bfloat16_on_a_gpu():
    gpu = described_device("h200", 1)
    on_cpu, on_gpu = plan_memory(SMALL, options()), plan_memory(SMALL, options(), gpu)
    assert on_cpu.weight_bytes == weight_bytes(SMALL, ComputeDtype.FLOAT32)
    assert on_gpu.weight_bytes == weight_bytes(SMALL, ComputeDtype.BFLOAT16)
