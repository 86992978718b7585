"""The selection rule where it is easy to get wrong: ties, NaN, signed zeros, short rows, pads."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.engine.attention.rows import SelectionRule
from gnomon.engine.options import CacheFormat

from .conftest import BACKENDS
from .paged import Chunk, World

FP32 = CacheFormat.FP32
BLOCK = 16


def scored(backend, scores: list[float], rule: SelectionRule, rows: int = 1) -> list[list[int]]:
    """Selection of the last ``rows`` rows when block b scores ``scores[b]``.

    The own block comes after the scored ones. One token of each block carries the score; the
    others score far less, or the same NaN.
    """
    world = World(FP32, [(len(scores) + 1) * BLOCK])
    keys = torch.zeros_like(world.tokens[0].index_k)
    for block, score in enumerate(scores):
        keys[block * BLOCK : (block + 1) * BLOCK, 0] = -math.inf if score == -math.inf else -2e38
        keys[block * BLOCK + block % BLOCK, 0] = score
    world.write_all(backend)
    poke_index(world, keys)
    batch = world.batch([Chunk(world.lengths[0] - rows, rows)])
    index_q = torch.zeros(rows, world.shape.kv_heads, world.shape.dim)
    index_q[..., 0] = 1.0
    blocks = backend.select(world.cache, batch, index_q, rule).blocks
    assert (blocks == blocks[:, :1]).all(), "heads with the same query must agree"
    return blocks[:, 0].tolist()


def poke_index(world: World, keys: torch.Tensor) -> None:
    """Put raw fp32 index keys [T, Di] into the pages, past the check for NaN and Inf."""
    field = world.cache.index
    assert field is not None
    pages = field.view(torch.float32).view(field.shape[0], BLOCK, -1)
    position = torch.arange(len(keys))
    pages[world.page_table[0, position // BLOCK], position % BLOCK] = keys


def test_history_comes_by_score_and_the_own_block_last(backend):
    assert scored(backend, [1, 5, 3, 4, 2], SelectionRule(4)) == [[1, 3, 2, 5]]


def test_on_a_tie_the_lower_block_wins(backend):
    assert scored(backend, [7, 7, 7, 7, 7], SelectionRule(4)) == [[0, 1, 2, 5]]
    assert scored(backend, [1, 2, 2, 1, 2, 1], SelectionRule(5)) == [[1, 2, 4, 0, 6]]


def test_a_tie_at_the_cut_goes_to_the_lower_block(backend):
    assert scored(backend, [0, 9, 4, 4, 4], SelectionRule(3)) == [[1, 2, 5]]


def test_signed_zeros_are_equal(backend):
    assert scored(backend, [-0.0, 0.0, -0.0, 0.0], SelectionRule(4)) == [[0, 1, 2, 4]]
    assert scored(backend, [0.0, -0.0, 0.0, -0.0], SelectionRule(4)) == [[0, 1, 2, 4]]


def test_magnitudes_do_not_confuse_the_order(backend):
    scores = [1e20, -1e20, 1e-40, -1e-40, 1e30, 2.0]
    assert scored(backend, scores, SelectionRule(7)) == [[4, 0, 5, 2, 3, 1, 6]]


def test_a_nan_block_is_never_chosen(backend):
    assert scored(backend, [math.nan, 1, 2, math.nan], SelectionRule(5)) == [[2, 1, 4, -1, -1]]
    assert scored(backend, [math.nan] * 3, SelectionRule(4)) == [[3, -1, -1, -1]]


def test_a_negative_nan_is_a_nan(backend):
    negative = -math.nan if math.copysign(1, -math.nan) < 0 else math.nan
    assert scored(backend, [negative, 1.0], SelectionRule(3)) == [[1, 2, -1]]


def test_a_nan_block_is_kept_if_forced(backend):
    rule = SelectionRule(topk_blocks=4, init_blocks=1, local_blocks=2)
    assert scored(backend, [math.nan, 3, 5, math.nan], rule) == [[2, 0, 3, 4]]


def test_infinite_scores_are_scores(backend):
    inf = math.inf
    assert scored(backend, [-inf, inf, 0, -inf], SelectionRule(5)) == [[1, 2, 0, 3, 4]]


def test_forced_blocks_follow_history_in_ascending_order(backend):
    rule = SelectionRule(topk_blocks=6, init_blocks=2, local_blocks=2)
    assert scored(backend, [9, 8, 1, 3, 2, 7], rule) == [[3, 4, 0, 1, 5, 6]]


@pytest.mark.parametrize("visible", [1, 2, 3, 4])
def test_few_visible_blocks_are_all_chosen(backend, visible):
    world = World(CacheFormat.MXFP4, [visible * BLOCK])
    world.write_all(backend)
    rows = world.batch([Chunk(visible * BLOCK - 1, 1)])
    chosen = backend.select(world.cache, rows, world.queries(rows)[0], SelectionRule(4)).blocks
    for head in chosen[0]:
        assert sorted(head[:visible].tolist()) == list(range(visible))
        assert head[visible:].tolist() == [-1] * (4 - visible)


def test_each_row_of_a_request_has_its_own_last_block(backend):
    chosen = scored(backend, [1, 2, 3], SelectionRule(2), rows=BLOCK + 2)
    assert [row[-1] for row in chosen] == [2, 2] + [3] * BLOCK


def test_each_head_chooses_for_itself(backend):
    world = World(FP32, [5 * BLOCK])
    world.write_all(backend)
    rows = world.batch([Chunk(5 * BLOCK - 1, 1)])
    q = torch.zeros(1, 2, world.shape.dim)
    keys = world.tokens[0].index_k
    q[0, 0], q[0, 1] = keys[3] * 100, keys[2 * BLOCK] * 100
    chosen = backend.select(world.cache, rows, q, SelectionRule(2)).blocks
    assert chosen.tolist() == [[[0, 4], [2, 4]]]


def test_a_pad_row_selects_nothing(backend):
    world = World(CacheFormat.MXFP4, [3 * BLOCK])
    world.write_all(backend)
    rows = world.batch([Chunk(2 * BLOCK, 2)], pads=3)
    chosen = backend.select(world.cache, rows, world.queries(rows)[0], SelectionRule(4)).blocks
    assert (chosen[:3] == -1).all()
    assert (chosen[3:, :, 2] == 2).all()


def test_a_batch_of_pads_selects_nothing(backend):
    world = World(CacheFormat.MXFP4, [3 * BLOCK])
    rows = world.batch([None], pads=4)
    chosen = backend.select(world.cache, rows, world.queries(rows)[0], SelectionRule(4)).blocks
    assert chosen.shape == (4, 2, 4)
    assert (chosen == -1).all()


@pytest.mark.parametrize("rule", [SelectionRule(2, 1, 2), SelectionRule(4, 0, 0)], ids=str)
def test_a_rule_that_cannot_be_kept_is_an_error(backend, rule):
    world = World(FP32, [BLOCK])
    rows = world.batch([Chunk(0, 1)])
    with pytest.raises(ValueError, match="forced blocks must fit"):
        backend.select(world.cache, rows, world.queries(rows)[0], rule)


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12 * BLOCK), min_size=1, max_size=4),
    chunk=st.integers(1, 40),
    topk=st.integers(1, 8),
    init=st.integers(0, 3),
    local=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_every_list_keeps_the_contract(name, lengths, chunk, topk, init, local, seed):
    rule = SelectionRule(max(topk, init + local), init, local)
    backend = BACKENDS[name]()
    world = World(CacheFormat.MXFP4, lengths, seed=seed)
    world.write_all(backend)
    rows = world.batch([Chunk(max(0, n - chunk), min(chunk, n)) for n in lengths], pads=1)
    chosen = backend.select(world.cache, rows, world.queries(rows)[0], rule).blocks
    for position, heads in zip(rows.positions.tolist(), chosen.tolist(), strict=True):
        for blocks in heads:
            if position < 0:
                assert set(blocks) == {-1}
                continue
            visible = position // BLOCK + 1
            count = min(rule.topk_blocks, visible)
            valid = blocks[:count]
            forced = {b for b in range(visible) if b < init or b >= visible - local}
            assert blocks[count:] == [-1] * (rule.topk_blocks - count), "left-packed"
            assert len(set(valid)) == count
            assert set(valid) <= set(range(visible))
            assert valid[count - len(forced) :] == sorted(forced), "forced last, own block at end"
