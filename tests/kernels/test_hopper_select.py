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
#: Queries of 16 bits are multiplied exactly: what is left is the order of fp32 sums.
BOUND = {torch.float8_e4m3fn: PRECISION, torch.bfloat16: 1e-6, torch.float16: 1e-6}
QUERIES = pytest.mark.parametrize("dtype", BOUND)

LENGTHS = {
    "one long": [300_000],
    "short and long": [1, 127, 128, 129, 2048, 2049, 40_000, 17 * 128, 5, 8192, 130_000],
    "many": [3000 + 517 * i for i in range(40)],
    "hundreds": [128 * (i % 37) + 1 for i in range(300)],
    "more than a launch takes": [128 * (i % 11) + 3 for i in range(600)],
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
    assert gap <= BOUND[q.dtype], (lists, gap)
    return lists


@FP4
@QUERIES
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("heads", "per_request"), [(1, 1), (4, 1), (4, 4), (2, 3), (4, 8)])
def test_lists_are_the_references(hopper, fmt, dtype, lengths, heads, per_request):
    index = index_pages(fmt, LENGTHS[lengths], heads)
    rows = index.rows(per_request)
    lists = compare(hopper, index, rows, queries(rows, heads, dtype))
    print(f"{fmt.value} {dtype} {lengths} {heads}x{per_request}: {lists} of "
          f"{rows.num_rows * heads} differ")  # fmt: skip


@FP4
@QUERIES
def test_pages_that_differ_in_one_code(hopper, fmt, dtype):
    """Scores lie as close together as keys allow."""
    index = index_pages(fmt, [150_000, 40_000], 4, distinct=2)
    assert index.cache.index is not None
    flat = index.cache.index[:, 0]
    at = torch.randint(0, 8192, (len(flat),), device="cuda")
    flat[torch.arange(len(flat), device="cuda"), at] ^= 1
    rows = index.rows(4)
    lists = compare(hopper, index, rows, queries(rows, 4, dtype))
    print(f"{fmt.value} {dtype} one code apart: {lists} of {rows.num_rows * 4} differ")


@FP4
@QUERIES
def test_groups_of_a_token_that_differ_a_lot_in_scale(hopper, fmt, dtype):
    index = index_pages(fmt, [150_000, 40_000], 4)
    scales = index.scales()
    low, high = (90, 165) if fmt is CacheFormat.MXFP4 else (0, 0x7F)
    scales.copy_(torch.randint(low, high, scales.shape, device="cuda"))
    rows = index.rows(4)
    lists = compare(hopper, index, rows, queries(rows, 4, dtype))
    print(f"{fmt.value} {dtype} scales apart: {lists} of {rows.num_rows * 4} differ")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_exact_lists_with_scales_at_both_ends_of_e8m0(hopper, dtype):
    """Subnormal elements, and such as are beyond bf16 and read as its largest number."""
    index = index_pages(CacheFormat.MXFP4, [100_000], 4)
    rows = index.rows(4)
    for low, high, size in ((0, 4, 2.0**8), (250, 255, 2.0**-10)):  # scores within fp32
        scales = index.scales()
        scales.copy_(torch.randint(low, high, scales.shape, device="cuda"))
        q = (torch.randn(rows.num_rows, 4, 128, device="cuda") * size).to(dtype)
        compare(hopper, index, rows, q)


@FP4
@QUERIES
def test_a_page_with_a_nan_scale_is_never_chosen(hopper, fmt, dtype):
    index = index_pages(fmt, [40_000, 1500], 4)
    scales = index.scales()
    bad = [0xFF] if fmt is CacheFormat.MXFP4 else [0x7F, 0xFF]
    per_token = scales.shape[1] // 128
    poisoned = range(0, 312, 3)
    for block in poisoned:
        token, group = (37 * block) % 128, block % per_token
        scales[index.page_table[0, block], token * per_token + group] = bad[block % len(bad)]
    rows = index.rows(2)
    q = queries(rows, 4, dtype)
    compare(hopper, index, rows, q)
    chosen = hopper.select(index.cache, rows, q, RULE).blocks[:2]
    assert not torch.isin(chosen[:, :, :-1], torch.tensor(poisoned, device="cuda")).any()


@FP4
def test_what_lies_past_the_end_of_a_request_is_not_read(hopper, fmt):
    index = index_pages(fmt, [128 * 300 + 5, 900], 4)
    rows = index.rows(1)
    q = queries(rows, 4)
    before = hopper.select(index.cache, rows, q, RULE).blocks
    assert index.cache.index is not None
    for request, own in ((0, 300), (1, 7)):
        index.cache.index[index.page_table[request, own]] = 0xFF
    assert torch.equal(hopper.select(index.cache, rows, q, RULE).blocks, before)


@FP4
@QUERIES
@pytest.mark.parametrize("distinct", [1, 2, 5, 40])
def test_ties_go_to_the_lower_block(hopper, fmt, dtype, distinct):
    """Many equal pages and scores that every precision has exactly: ids are the reference's."""
    index = index_pages(fmt, [200_000, 3000, 77_777], 4, distinct=distinct)
    rows = index.rows(2)
    q = torch.randint(-2, 3, (rows.num_rows, 4, 128), device="cuda").to(dtype)
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
@QUERIES
def test_a_nan_query_selects_only_what_is_forced(hopper, fmt, dtype):
    index = index_pages(fmt, [50_000], 4)
    rows = index.rows(2)
    q = queries(rows, 4, dtype)
    q[1, 2, 77] = float("nan")
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


@pytest.mark.parametrize(
    "fmt", [f for f in CacheFormat if f not in (CacheFormat.MXFP4, CacheFormat.NVFP4)]
)
@pytest.mark.parametrize(("heads", "per_request"), [(1, 1), (4, 4)])
def test_other_layouts_with_bf16_queries(hopper, fmt, heads, per_request):
    """Triton kernels: products are exact, sums fp32; only the order of summation differs."""
    index = index_pages(fmt, [3000, 60_000], heads)
    assert index.cache.index is not None
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
