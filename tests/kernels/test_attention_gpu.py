"""bf16 attention on a GPU against float64 over the dequantised cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from gnomon.engine.attention.rows import RowBatch, Selection
from gnomon.engine.cache.pools import LayerCache, build_pools
from gnomon.engine.layouts.base import Encoded
from gnomon.engine.layouts.geometry import LayerPages, geometry
from gnomon.engine.options import CacheFormat

pytestmark = pytest.mark.gpu

BLOCK, DIM = 128, 128
FORMATS = pytest.mark.parametrize(
    "fmt", [CacheFormat.BF16, CacheFormat.FP8, CacheFormat.MXFP4, CacheFormat.NVFP4]
)
LENGTHS = [1, 127, 128, 129, 2048, 2049, 5000, 9000]


@pytest.fixture(scope="module")
def hopper():
    from gnomon.engine.attention.triton.backend import TritonBackend

    return TritonBackend(kernels="hopper")


def filled(fmt: CacheFormat, heads: int, blocks: int, poison: int) -> LayerCache:
    """Pages of normal numbers whose tokens differ in size."""
    key, value = geometry(fmt, BLOCK, DIM, "key"), geometry(fmt, BLOCK, DIM, "value")
    cache = build_pools([LayerPages(heads, key, value, None)], blocks, "cuda").layers[0]
    for pool, layout in ((cache.k, cache.k_layout), (cache.v, cache.v_layout)):
        x = torch.randn(blocks * heads * BLOCK, DIM, device="cuda")
        x *= torch.exp2(torch.randint(-3, 3, (len(x), 1), device="cuda"))
        token = torch.arange(len(x), device="cuda")
        pool.fill_(poison)
        layout.store(pool.flatten(0, 1), token // BLOCK, token % BLOCK, layout.quantise(x))
    return cache


def world(
    fmt: CacheFormat, heads: int, group: int, per_request: int, pads: int = 0,
    lengths: Sequence[int] = LENGTHS,
):  # fmt: skip
    """A cache, rows at the ends of requests, queries, and a random selection of each row."""
    count = [-(-n // BLOCK) for n in lengths]
    cache = filled(fmt, heads, sum(count), 0)
    table = torch.full((len(lengths), max(count)), -1, device="cuda")
    for i, own in enumerate(torch.randperm(sum(count), device="cuda").split(count)):
        table[i, : count[i]] = own
    positions, requests = [], []
    for i, n in enumerate(lengths):
        span = range(max(0, n - per_request), n)
        positions += [-1] * pads + list(span)
        requests += [-1] * pads + [i] * len(span)
    position, request = (torch.tensor(x, device="cuda") for x in (positions, requests))
    stored = torch.tensor(lengths, device="cuda")
    rows = RowBatch(position, position, request, table, stored, BLOCK)
    q = torch.randn(len(positions), heads * group, DIM, device="cuda").bfloat16()
    blocks = torch.full((len(positions), heads, 16), -1, device="cuda")
    for r, p in enumerate(positions):
        for h in range(heads if p >= 0 else 0):
            own = p // BLOCK
            history = torch.randperm(own, device="cuda")[:15]
            blocks[r, h, : len(history)], blocks[r, h, len(history)] = history, own
    # Past the last token of each request lies garbage, NaN as a scale.
    for i, n in enumerate(lengths):
        if n % BLOCK:
            for pool, layout in ((cache.k, cache.k_layout), (cache.v, cache.v_layout)):
                page = table[i, n // BLOCK].expand(BLOCK - n % BLOCK)
                token = torch.arange(n % BLOCK, BLOCK, device="cuda")
                garbage = Encoded(
                    tuple(
                        torch.full((len(token), region.token_bytes), 0xFF, dtype=torch.uint8).cuda()
                        for region in layout.geometry.regions
                    )
                )
                for head in range(heads):
                    layout.store(pool[:, head], page, token, garbage)
    return cache, rows, q, Selection(blocks)


def expected(
    cache: LayerCache, rows: RowBatch, q: torch.Tensor, blocks: torch.Tensor | None,
    window: int | None = None,
):  # fmt: skip
    """float64 attention, row by row; over every block, or a window, if none are listed."""
    heads = cache.pages.kv_heads
    group = q.shape[1] // heads
    out = torch.zeros(q.shape, dtype=torch.float64, device="cuda")
    for r in range(len(q)):
        p = int(rows.positions[r])
        for h in range(heads if p >= 0 else 0):
            last = p if blocks is not None else int(rows.seen_to[r])
            every = torch.arange(last // BLOCK + 1, device="cuda")
            listed = every if blocks is None else blocks[r, h][blocks[r, h] >= 0]
            pages = rows.page_table[rows.request_of_row[r], listed]
            token = (listed[:, None] * BLOCK + torch.arange(BLOCK, device="cuda")).flatten()
            seen = token <= last
            if window is not None:
                seen &= token > p - window
            k, v = (
                layout.dequantise(layout.load(pool[pages, h])).flatten(0, 1)[seen].double()
                for pool, layout in ((cache.k, cache.k_layout), (cache.v, cache.v_layout))
            )
            mine = q[r, h * group : (h + 1) * group].double()
            out[r, h * group : (h + 1) * group] = torch.softmax(mine @ k.T * DIM**-0.5, -1) @ v
    return out


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    return float((out.double() - reference).norm() / reference.norm())


@FORMATS
@pytest.mark.parametrize(("heads", "group"), [(1, 16), (4, 16), (2, 8), (4, 5)])
@pytest.mark.parametrize("per_request", [1, 4])
def test_sparse_attention_is_within_2e_3(hopper, fmt, heads, group, per_request):
    cache, rows, q, selection = world(fmt, heads, group, per_request, pads=1)
    out = hopper.sparse(cache, rows, q, selection)
    reference = expected(cache, rows, q, selection.blocks)
    assert (out[rows.positions < 0] == 0).all()
    error = relative_error(out, reference)
    print(f"{fmt.value} {heads}x{group} {per_request} rows: {error:.2e}")
    assert error <= 2e-3
    each = [relative_error(o, r) for o, r in zip(out, reference, strict=True) if r.any()]
    assert max(each) <= 4e-3


@FORMATS
@pytest.mark.parametrize("per_request", [1, 4])
def test_dense_attention_is_within_2e_3(hopper, fmt, per_request):
    cache, rows, q, _ = world(fmt, 2, 16, per_request, pads=1)
    out = hopper.dense(cache, rows, q)
    reference = expected(cache, rows, q, None)
    error = relative_error(out, reference)
    print(f"{fmt.value} dense {per_request} rows: {error:.2e}")
    assert error <= 2e-3


@FORMATS
@pytest.mark.parametrize("window", [1, 100, 128, 1500])
def test_dense_attention_sees_a_window(hopper, fmt, window):
    cache, rows, q, _ = world(fmt, 2, 16, 2)
    out = hopper.dense(cache, rows, q, window)
    assert relative_error(out, expected(cache, rows, q, None, window)) <= 2e-3


@FORMATS
def test_rows_of_a_block_see_each_other(hopper, fmt):
    cache, rows, q, _ = world(fmt, 2, 16, 4)
    last = rows.lengths[rows.request_of_row] - 1
    block = replace(rows, last_seen=last)
    out = hopper.dense(cache, block, q)
    assert relative_error(out, expected(cache, block, q, None)) <= 2e-3
    assert not torch.equal(out, hopper.dense(cache, rows, q))


@FORMATS
def test_one_program_attends_to_more_pages_than_it_lists_at_once(hopper, fmt):
    """Pads fill the device, so that nothing is split: 313 pages are one program's."""
    cache, rows, q, _ = world(fmt, 1, 16, 1, pads=300, lengths=[40_000])
    out = hopper.dense(cache, rows, q)
    assert relative_error(out, expected(cache, rows, q, None)) <= 2e-3


@FORMATS
def test_replays_follow_positions_and_lists_that_change(hopper, fmt):
    cache, rows, q, selection = world(fmt, 2, 16, 2)
    hopper.sparse(cache, rows, q, selection)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = hopper.sparse(cache, rows, q, selection)
    for step in range(3):
        q.copy_(torch.randn_like(q))
        if step == 1:
            selection.blocks[:, :, :4] = -1
        if step == 2:
            rows.positions[3] = -1
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, hopper.sparse(cache, rows, q, selection))
        assert relative_error(out, expected(cache, rows, q, selection.blocks)) <= 2e-3


def test_a_pool_beyond_4_gib_is_addressed(hopper):
    """Pages at the end of a pool of 2^32 bytes and more."""
    key, value = (geometry(CacheFormat.MXFP4, BLOCK, DIM, role) for role in ("key", "value"))
    blocks = (1 << 32) // key.page_bytes + 40
    big = build_pools([LayerPages(1, key, value, None)], blocks, "cuda").layers[0]
    cache, rows, q, selection = world(CacheFormat.MXFP4, 1, 16, 1)
    shift = blocks - cache.k.shape[0]
    for name in ("k", "v"):
        getattr(big, name)[shift:] = getattr(cache, name)
    moved = replace(rows, page_table=torch.where(rows.page_table < 0, -1, rows.page_table + shift))
    assert torch.equal(
        hopper.sparse(big, moved, q, selection), hopper.sparse(cache, rows, q, selection)
    )
    triton = type(hopper)()
    assert torch.equal(
        triton.sparse(big, moved, q, selection), triton.sparse(cache, rows, q, selection)
    )
