"""CUDA C++ selection on a GPU: the reference's ids, but for scores closer than its precision."""

from __future__ import annotations

import pytest
import torch

from gnomon.engine.attention.cuda.select import PRECISION
from gnomon.engine.attention.reference.backend import ReferenceBackend
from gnomon.engine.attention.rows import RowBatch, SelectionRule
from gnomon.engine.options import CacheFormat

from .pages import index_pages, queries, worst_loss

pytestmark = pytest.mark.gpu

FP4 = pytest.mark.parametrize("fmt", [CacheFormat.MXFP4, CacheFormat.NVFP4])
RULE = SelectionRule(16)
REFERENCE = ReferenceBackend()

LENGTHS = {
    "one long": [300_000],
    "short and long": [1, 127, 128, 129, 2048, 2049, 40_000, 17 * 128, 5, 8192, 130_000],
    "many": [3000 + 517 * i for i in range(40)],
    "hundreds": [128 * (i % 37) + 1 for i in range(300)],
    "none with history": [1, 64, 128],
}


@pytest.fixture(scope="module")
def hopper():
    from gnomon.engine.attention.triton.backend import TritonBackend

    return TritonBackend(kernels="hopper")


def compare(hopper, index, rows: RowBatch, q: torch.Tensor, rule: SelectionRule = RULE) -> int:
    mine = hopper.select(index.cache, rows, q, rule).blocks
    theirs = REFERENCE.select(index.cache, rows, q, rule).blocks
    again = hopper.select(index.cache, rows, q, rule).blocks
    assert torch.equal(mine, again), "the same bytes give the same answer"
    lists, gap = worst_loss(index, rows, q, mine, theirs)
    assert gap <= PRECISION, (lists, gap)
    return lists


@FP4
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("heads", "per_request"), [(1, 1), (4, 1), (4, 4), (2, 3), (4, 2)])
def test_lists_are_the_references(hopper, fmt, lengths, heads, per_request):
    index = index_pages(fmt, LENGTHS[lengths], heads)
    rows = index.rows(per_request)
    lists = compare(hopper, index, rows, queries(rows, heads))
    print(f"{fmt.value} {lengths} {heads}x{per_request}: {lists} of {rows.num_rows * heads} differ")


@pytest.mark.parametrize("lengths", ["one long", "many"])
def test_thirty_two_queries_a_request(hopper, lengths):
    index = index_pages(CacheFormat.MXFP4, LENGTHS[lengths], 4)
    rows = index.rows(8)
    compare(hopper, index, rows, queries(rows, 4))


@FP4
@pytest.mark.parametrize("distinct", [1, 2, 5, 40])
def test_ties_go_to_the_lower_block(hopper, fmt, distinct):
    """Many equal pages and scores that every precision has exactly: ids are the reference's."""
    index = index_pages(fmt, [200_000, 3000, 77_777], 4, distinct=distinct)
    rows = index.rows(2)
    q = torch.randint(-2, 3, (rows.num_rows, 4, 128), device="cuda").to(torch.float8_e4m3fn)
    mine = hopper.select(index.cache, rows, q, RULE).blocks
    theirs = REFERENCE.select(index.cache, rows, q, RULE).blocks
    assert torch.equal(mine, theirs)


@FP4
def test_rows_that_cross_a_block_and_pads(hopper, fmt):
    index = index_pages(fmt, [128 * 30 + 2, 128 * 400 + 1, 9], 4)
    for pads in (0, 2):
        rows = index.rows([4, 4, 3], pads=pads)
        q = queries(rows, 4)
        compare(hopper, index, rows, q)
        chosen = hopper.select(index.cache, rows, q, RULE).blocks
        assert (chosen[rows.positions < 0] == -1).all()


@FP4
def test_a_nan_query_selects_only_what_is_forced(hopper, fmt):
    index = index_pages(fmt, [50_000], 4)
    rows = index.rows(2)
    q = queries(rows, 4)
    q.view(torch.uint8)[1, 2, 77] = 0xFF
    compare(hopper, index, rows, q)


@pytest.mark.parametrize(
    "rule",
    [SelectionRule(2), SelectionRule(16, 2, 3), SelectionRule(17, 0, 1), SelectionRule(8, 1, 1)],
)
def test_other_rules(hopper, rule):
    index = index_pages(CacheFormat.MXFP4, [60_000, 700, 1], 4)
    rows = index.rows(1)
    compare(hopper, index, rows, queries(rows, 4), rule)


def test_replays_follow_lengths_that_change(hopper):
    index = index_pages(CacheFormat.MXFP4, [90_000, 33_000, 5_000, 40_000], 4)
    rows = index.rows(2)
    q = queries(rows, 4)
    hopper.select(index.cache, rows, q, RULE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        blocks = hopper.select(index.cache, rows, q, RULE).blocks
    for back in (0, 1, 4_000, 4_998):
        rows.positions.copy_(index.rows(2, before=back).positions)
        q.copy_(queries(rows, 4))
        if back == 4_000:  # a request leaves: its rows turn into padding
            rows.positions[2:4], rows.request_of_row[2:4] = -1, -1
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(blocks, hopper.select(index.cache, rows, q, RULE).blocks)
        theirs = REFERENCE.select(index.cache, rows, q, RULE).blocks
        assert worst_loss(index, rows, q, blocks, theirs)[1] <= PRECISION


@pytest.mark.parametrize("fmt", CacheFormat)
@pytest.mark.parametrize(("heads", "per_request"), [(1, 1), (4, 4)])
def test_exact_lists_with_bf16_queries(hopper, fmt, heads, per_request):
    """Triton kernels: products are exact, sums fp32; only the order of summation differs."""
    index = index_pages(CacheFormat.FP32 if fmt is CacheFormat.FP32 else fmt, [3000, 60_000], heads)
    assert index.cache.index is not None
    if fmt not in (CacheFormat.MXFP4, CacheFormat.NVFP4):
        assert index.cache.index_layout is not None
        x = torch.randn(index.cache.index.shape[0] * 128, 128, device="cuda")
        encoded = index.cache.index_layout.quantise(x)
        token = torch.arange(len(x), device="cuda")
        index.cache.index_layout.store(index.cache.index[:, 0], token // 128, token % 128, encoded)
    rows = index.rows(per_request)
    q = queries(rows, heads, torch.float32 if fmt is CacheFormat.FP32 else torch.bfloat16)
    mine = hopper.select(index.cache, rows, q, RULE).blocks
    theirs = REFERENCE.select(index.cache, rows, q, RULE).blocks
    lists, gap = worst_loss(index, rows, q, mine, theirs)
    assert gap <= 1e-6, (lists, gap)
