"""Prefill selection and sparse attention in CUDA C++ on a GPU, held to reference and float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnomon.engine.attention.cuda import prefill_select, prefill_sparse
from gnomon.engine.attention.reference.backend import ReferenceBackend
from gnomon.engine.attention.rows import RowBatch, Selection, SelectionRule
from gnomon.engine.attention.triton.plan import Plans, unselected
from gnomon.engine.cache.pools import LayerCache
from gnomon.engine.options import CacheFormat

from .pages import Index, index_pages, queries, worst_loss
from .test_attention_gpu import BLOCK, expected, filled, relative_error

pytestmark = pytest.mark.gpu

FP4 = pytest.mark.parametrize("fmt", [CacheFormat.MXFP4, CacheFormat.NVFP4])
RULE = SelectionRule(16)
REFERENCE = ReferenceBackend()
E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16

#: Lengths of requests, and the rows of each at its end.
STEPS = {
    "a chunk that ends in a page": ([5000], [700]),
    "a whole prompt": ([1500], [1500]),
    "chunks, verify rows and a decode row": ([40_000, 300, 9000, 7], [300, 300, 4, 1]),
}


def select(
    index: Index, rows: RowBatch, q: torch.Tensor, rule: SelectionRule = RULE
) -> torch.Tensor:
    """The kernel's lists, whatever the backend would choose for the step."""
    assert index.cache.index_layout is not None
    assert prefill_select.fits(index.cache.index_layout.geometry, q, rule)
    tiles = Plans().tiles(rows, prefill_select.QUERIES // q.shape[1])
    out = unselected(tiles.rows, (rows.num_rows, q.shape[1], rule.topk_blocks), q.device)
    prefill_select.select(index.cache, rows, q, rule, tiles, out)
    return out


@FP4
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("heads", [1, 3, 4])
@pytest.mark.parametrize("dtype", [E4M3, BF16], ids=["e4m3", "bf16"])
def test_lists_are_the_references(fmt, step, heads, dtype):
    """Exactly with bf16 products, else but for scores closer than the stated precision."""
    lengths, per_request = STEPS[step]
    index = index_pages(fmt, lengths, heads)
    rows = index.rows(per_request, pads=1)
    q = queries(rows, heads, dtype)
    mine = select(index, rows, q)
    theirs = REFERENCE.select(index.cache, rows, q, RULE).blocks
    assert torch.equal(mine, select(index, rows, q)), "the same bytes give the same answer"
    lists, gap = worst_loss(index, rows, q, mine, theirs)
    exact = dtype == BF16 or fmt is CacheFormat.NVFP4
    assert gap <= (1e-6 if exact else prefill_select.PRECISION), (lists, gap)
    print(f"{fmt.value} {dtype} {step}, {heads} heads: {lists} of {mine[..., 0].numel()} differ")


@FP4
@pytest.mark.parametrize("distinct", [1, 2, 5, 40])
def test_ties_go_to_the_lower_block(fmt, distinct):
    index = index_pages(fmt, [100_000, 3000], 4, distinct=distinct)
    rows = index.rows(90)
    q = torch.randint(-2, 3, (rows.num_rows, 4, 128), device="cuda").to(E4M3)
    theirs = REFERENCE.select(index.cache, rows, q, RULE).blocks
    assert torch.equal(select(index, rows, q), theirs)


@pytest.mark.parametrize(
    "rule",
    [SelectionRule(2), SelectionRule(16, 2, 3), SelectionRule(17, 0, 1), SelectionRule(8, 1, 1)],
)
def test_other_rules(rule):
    index = index_pages(CacheFormat.NVFP4, [20_000, 700], 4)
    rows = index.rows(200)
    q = queries(rows, 4)
    theirs = REFERENCE.select(index.cache, rows, q, rule).blocks
    assert worst_loss(index, rows, q, select(index, rows, q, rule), theirs)[1] <= 1e-6


@FP4
def test_a_nan_query_selects_only_what_is_forced(fmt):
    index = index_pages(fmt, [9000], 4)
    rows = index.rows(70)
    q = queries(rows, 4)
    q.view(torch.uint8)[5, 2, 77] = 0xFF
    mine = select(index, rows, q)
    assert mine[5, 2].tolist() == [int(rows.positions[5]) // BLOCK] + [-1] * 15


@FP4
def test_all_scores_may_be_negative(fmt):
    """Keys and queries of opposite signs: the largest score is the least negative one."""
    index = index_pages(fmt, [6000], 2)
    assert index.cache.index is not None
    codes = index.cache.index[:, 0, : BLOCK * 64]
    codes.copy_(index.cache.index_layout.from_row_major(  # type: ignore[union-attr]
        index.cache.index_layout.to_row_major(index.cache.index[:, 0]) | 0x88  # type: ignore[union-attr]
    )[:, : BLOCK * 64])  # fmt: skip
    rows = index.rows(130)
    q = queries(rows, 2).float().abs().to(E4M3)
    theirs = REFERENCE.select(index.cache, rows, q, RULE).blocks
    assert worst_loss(index, rows, q, select(index, rows, q), theirs)[1] <= prefill_select.PRECISION


def world(
    fmt: CacheFormat, heads: int, group: int, length: int, count: int
) -> tuple[LayerCache, RowBatch, torch.Tensor, Selection]:
    """One request's last rows with random lists, garbage past its end, and a pad row."""
    pages = -(-length // BLOCK)
    cache = filled(fmt, heads, pages + 2, 0)
    table = torch.randperm(pages + 2, device="cuda")[None, :pages].contiguous()
    position = torch.arange(length - count, length, device="cuda")
    request = torch.zeros_like(position)
    position[3], request[3] = -1, -1
    rows = RowBatch(position, position, request, table, position[-1:] + 1, BLOCK)
    q = torch.randn(count, heads * group, 128, device="cuda").bfloat16()
    own = (position // BLOCK)[:, None, None]
    order = torch.rand(count, heads, pages, device="cuda")
    order = order.masked_fill(torch.arange(pages, device="cuda") >= own, 2.0)
    ranked = order.sort(-1)
    history = ranked.indices[..., :15].masked_fill(ranked.values[..., :15] > 1, -1)
    lists = torch.full((count, heads, 16), -1, device="cuda")
    lists[..., : history.shape[-1]] = history
    taken = (lists >= 0).sum(-1, keepdim=True)
    lists.scatter_(-1, taken, own.expand(-1, heads, 1))
    lists[3] = -1
    spoil(cache, int(table[0, -1]), length % BLOCK)
    return cache, rows, q, Selection(lists)


def spoil(cache: LayerCache, block: int, first: int) -> None:
    """Every byte of a block's tokens from ``first`` on is 0xFF: NaN as a scale."""
    if first == 0:
        return
    for pool, layout in ((cache.k, cache.k_layout), (cache.v, cache.v_layout)):
        kept = layout.load(pool[block])
        pool[block] = 0xFF
        for head in range(pool.shape[1]):
            token = torch.arange(first, device="cuda")
            whole = type(kept)(tuple(r[head, :first] for r in kept.regions))
            layout.store(pool[block, head][None], torch.zeros_like(token), token, whole)


@FP4
@pytest.mark.parametrize(
    ("heads", "group", "length", "count"),
    [
        (2, 16, 4000, 200),
        (1, 8, 3000, 150),
        (4, 4, 2048, 140),
        (4, 16, 300, 129),
        (1, 16, 130, 130),
    ],
)
def test_sparse_attention_is_within_2e_3(fmt, heads, group, length, count):
    cache, rows, q, selection = world(fmt, heads, group, length, count)
    assert prefill_sparse.fits(cache, q, 16)
    out = prefill_sparse.sparse(cache, rows, q, selection)
    reference = expected(cache, rows, q, selection.blocks)
    assert (out[3] == 0).all()
    error = relative_error(out, reference)
    each = [relative_error(o, r) for o, r in zip(out, reference, strict=True) if r.any()]
    print(f"{fmt.value} {heads}x{group} {length}: {error:.2e}, worst row {max(each):.2e}")
    assert error <= 2e-3
    assert max(each) <= 4e-3
    assert torch.equal(out, prefill_sparse.sparse(cache, rows, q, selection))


@FP4
def test_chunks_of_rows_change_nothing(fmt, monkeypatch):
    cache, rows, q, selection = world(fmt, 2, 16, 3000, 400)
    whole = prefill_sparse.sparse(cache, rows, q, selection)
    monkeypatch.setattr(prefill_sparse, "_WORKSPACE", 64 * 32 * 16 * 264)
    assert prefill_sparse.chunk_rows(32, 16) == 64
    assert torch.equal(whole, prefill_sparse.sparse(cache, rows, q, selection))


@FP4
def test_many_rows_of_one_page(fmt):
    """Every row lists the same blocks: items are full, and one page has many."""
    cache, rows, q, selection = world(fmt, 1, 16, 2560, 500)
    same = selection.blocks.clone()
    same[..., :15] = torch.arange(15, device="cuda")
    same[..., 15] = (rows.positions // BLOCK)[:, None]
    same[3] = -1
    out = prefill_sparse.sparse(cache, rows, q, Selection(same))
    assert relative_error(out, expected(cache, rows, q, same)) <= 2e-3


@FP4
def test_replays_follow_positions_lists_and_pads_that_change(fmt):
    from gnomon.engine.attention.triton.backend import TritonBackend

    hopper = TritonBackend(kernels="hopper")
    cache, rows, q, selection = world(fmt, 2, 16, 4000, 160)
    hopper.sparse(cache, rows, q, selection)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = hopper.sparse(cache, rows, q, selection)
    for step in range(3):
        q.copy_(torch.randn_like(q))
        if step == 1:
            selection.blocks[:, :, :4] = -1
        if step == 2:
            rows.positions[10:20] = -1
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, prefill_sparse.sparse(cache, rows, q, selection))
        live = replace(rows, request_of_row=rows.request_of_row.where(rows.positions >= 0, -1))
        assert relative_error(out, expected(cache, live, q, selection.blocks)) <= 2e-3


@FP4
def test_selection_replays_follow_lengths_that_change(fmt):
    index = index_pages(fmt, [30_000, 9_000], 4)
    rows = index.rows(150)
    q = queries(rows, 4)
    select(index, rows, q)
    tiles = Plans().tiles(rows, 64)
    out = unselected(tiles.rows, (rows.num_rows, 4, 16), q.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prefill_select.select(index.cache, rows, q, RULE, tiles, out)
    for back in (0, 1, 4_000, 8_850):
        rows.positions.copy_(index.rows(150, before=back).positions)
        q.copy_(queries(rows, 4))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, select(index, rows, q))
        theirs = REFERENCE.select(index.cache, rows, q, RULE).blocks
        assert worst_loss(index, rows, q, out, theirs)[1] <= prefill_select.PRECISION


@FP4
def test_a_mixed_step_is_done_by_both_kernels(fmt):
    """Decode and verify rows beside a chunk, pads between: each list is the reference's."""
    from gnomon.engine.attention.triton.backend import TritonBackend

    index = index_pages(fmt, [9000, 20_000, 3000, 128, 5000], 4)
    rows = index.rows([1, 300, 4, 1, 9], pads=2)
    q = queries(rows, 4)
    mine = TritonBackend(kernels="hopper").select(index.cache, rows, q, RULE).blocks
    theirs = REFERENCE.select(index.cache, rows, q, RULE).blocks
    assert (mine[rows.positions < 0] == -1).all()
    assert worst_loss(index, rows, q, mine, theirs)[1] <= prefill_select.PRECISION
