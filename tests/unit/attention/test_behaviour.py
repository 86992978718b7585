"""What must not change what a row sees: chunking, company, page addresses, garbage, padding."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from gnomon.engine.attention.reference.backend import ReferenceBackend
from gnomon.engine.attention.rows import Selection, SelectionRule
from gnomon.engine.errors import NonFiniteCacheInput
from gnomon.engine.options import CacheFormat

from .paged import Chunk, Seen, World, assert_same, observe

RULE = SelectionRule(topk_blocks=3)
formats = pytest.mark.parametrize("fmt", CacheFormat)


def step(backend, world: World, chunks) -> Seen:
    """Write the rows of a step, then attend, as a forward does."""
    rows = world.batch(chunks)
    world.write(backend, rows)
    return observe(backend, world, rows, RULE)


def concatenated(parts: list[Seen]) -> Seen:
    return Seen(
        torch.cat([p.blocks for p in parts]),
        torch.cat([p.sparse for p in parts]),
        torch.cat([p.dense for p in parts]),
    )


@formats
@pytest.mark.parametrize("cuts", [[100], [16, 32, 64, 80], [1, 15, 17, 60], list(range(1, 100))])
def test_chunking_changes_nothing(backend, fmt, cuts):
    whole = step(backend, World(fmt, [100], whole=True), [Chunk(0, 100)])
    world = World(fmt, [100], whole=True)
    edges = [0, *[c for c in cuts if c < 100], 100]
    parts = [step(backend, world, [Chunk(a, b - a)]) for a, b in pairwise(edges)]
    assert_same(concatenated(parts), whole)


@formats
def test_company_changes_nothing(backend, fmt):
    chunks = [Chunk(70, 1), Chunk(0, 33), Chunk(40, 1), Chunk(93, 4), Chunk(40, 1)]
    world = World(fmt, [c.start + c.rows for c in chunks], whole=True)
    world.write_all(backend)
    together = observe(backend, world, world.batch(chunks, pads=2), RULE)
    for i, chunk in enumerate(chunks):
        alone = [chunk if j == i else None for j in range(len(chunks))]
        first = sum(c.rows + 2 for c in chunks[:i]) + 2
        mine = together.rows(torch.arange(first, first + chunk.rows))
        assert_same(observe(backend, world, world.batch(alone), RULE), mine)


@formats
def test_page_addresses_change_nothing(backend, fmt):
    chunks = [Chunk(60, 20), Chunk(99, 1)]
    seen = []
    for shuffle in (False, True):
        world = World(fmt, [80, 100], whole=True, seed=1)
        if not shuffle:
            order = torch.arange(12)
            world.page_table = torch.stack((order[:7], order[5:]))
            world.page_table[0, 5:] = -1
        world.write_all(backend)
        seen.append(observe(backend, world, world.batch(chunks), RULE))
    assert_same(*seen)


@formats
@pytest.mark.parametrize("length", [1, 15, 16, 17, 100])
def test_bytes_beyond_the_end_are_never_seen(backend, fmt, length):
    """0xFF is NaN in every float and scale format; 0x7F is the largest or NaN."""
    seen = []
    for poison in (0x00, 0x7F, 0xFF):
        world = World(fmt, [length], poison=poison, whole=True)
        world.write_all(backend)
        seen.append(observe(backend, world, world.batch([Chunk(length - 1, 1)]), RULE))
    assert_same(seen[0], seen[1])
    assert_same(seen[0], seen[2])
    assert seen[0].sparse.isfinite().all()


@formats
def test_later_tokens_of_the_own_block_are_never_seen(backend, fmt):
    world = World(fmt, [32], whole=True)
    rows = world.batch([Chunk(18, 4)])
    world.write(backend, world.batch([Chunk(0, 22)]))
    before = observe(backend, world, rows, RULE)
    world.write(backend, world.batch([Chunk(22, 10)]))
    assert_same(observe(backend, world, rows, RULE), before)


def test_two_requests_may_share_the_pages_of_a_prefix(backend):
    world = World(CacheFormat.MXFP4, [70, 70], whole=True)
    for name in ("k", "v", "index_k"):
        getattr(world.tokens[1], name)[:48] = getattr(world.tokens[0], name)[:48]
    world.write_all(backend)
    rows = world.batch([Chunk(60, 3), Chunk(65, 1)])
    apart = observe(backend, world, rows, RULE)
    world.page_table[1, :3] = world.page_table[0, :3]
    assert_same(observe(backend, world, replace(rows, page_table=world.page_table), RULE), apart)


@formats
def test_a_pad_row_writes_nothing_and_outputs_zero(backend, fmt):
    world = World(fmt, [40])
    rows = world.batch([None], pads=5)
    fields = (world.cache.k, world.cache.v, world.cache.index)
    before = [f.clone() for f in fields]
    world.write(backend, rows)
    assert all(torch.equal(a, b) for a, b in zip(fields, before, strict=True))
    seen = observe(backend, world, rows, RULE)
    assert (seen.sparse == 0).all()
    assert (seen.dense == 0).all()


def test_pad_rows_do_not_disturb_the_others(backend):
    chunks = [Chunk(0, 20), Chunk(50, 1)]
    world = World(CacheFormat.MXFP4, [20, 51], whole=True)
    plain = step(backend, world, chunks)
    padded = world.batch(chunks, pads=3)
    world.write(backend, padded)
    live = (padded.positions >= 0).nonzero().squeeze(-1)
    seen = observe(backend, world, padded, RULE)
    assert_same(seen.rows(live), plain)
    assert (seen.sparse[padded.positions < 0] == 0).all()


def test_a_row_that_selects_nothing_outputs_zero(backend):
    world = World(CacheFormat.BF16, [40])
    world.write_all(backend)
    rows = world.batch([Chunk(38, 2)])
    none = Selection(torch.full((2, 2, 3), -1))
    assert (backend.sparse(world.cache, rows, world.queries(rows)[1], none) == 0).all()


def test_a_block_after_the_row_is_not_seen_even_if_selected(backend):
    world = World(CacheFormat.BF16, [64])
    world.write_all(backend)
    rows = world.batch([Chunk(20, 1)])
    q = world.queries(rows)[1]
    own = backend.sparse(world.cache, rows, q, Selection(torch.tensor([[[1, -1, -1]] * 2])))
    with_future = Selection(torch.tensor([[[3, 2, 1]] * 2]))
    torch.testing.assert_close(backend.sparse(world.cache, rows, q, with_future), own)


@formats
@pytest.mark.parametrize("rows", [1, 4])
def test_pages_that_no_row_selected_are_not_touched(backend, fmt, rows):
    world = World(fmt, [200], whole=True)
    world.write_all(backend)
    batch = world.batch([Chunk(200 - rows, rows)])
    before = observe(backend, world, batch, RULE)
    page = world.page_table[0]
    for head in range(world.shape.kv_heads):
        unused = torch.ones(len(page), dtype=torch.bool)
        unused[before.blocks[:, head].flatten()] = False
        assert unused.any()
        for field in (world.cache.k, world.cache.v):
            field[page[unused], head] = 0xFF  # NaN
    q = world.queries(batch)[1]
    after = backend.sparse(world.cache, batch, q, Selection(before.blocks))
    assert torch.equal(after, before.sparse)


def test_rows_of_another_block_size_are_refused(backend):
    world = World(CacheFormat.MXFP4, [20])
    rows = replace(world.batch([Chunk(0, 1)]), block_size=32)
    with pytest.raises(ValueError, match="blocks of 32 tokens"):
        world.write(backend, rows)


def test_selecting_everything_is_dense_attention(backend):
    world = World(CacheFormat.MXFP4, [100])
    world.write_all(backend)
    seen = observe(backend, world, world.batch([Chunk(30, 70)]), SelectionRule(topk_blocks=7))
    torch.testing.assert_close(seen.sparse, seen.dense, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_output_has_the_dtype_of_the_query(backend, dtype):
    world = World(CacheFormat.MXFP4, [50])
    world.write_all(backend)
    rows = world.batch([Chunk(40, 10)])
    index_q, q = world.queries(rows)
    selection = backend.select(world.cache, rows, index_q.to(dtype), RULE)
    for out in (
        backend.sparse(world.cache, rows, q.to(dtype), selection),
        backend.dense(world.cache, rows, q.to(dtype)),
    ):
        assert out.dtype == dtype
        assert out.shape == q.shape


def test_rewriting_a_slot_replaces_the_token(backend):
    world = World(CacheFormat.MXFP4, [20])
    world.write_all(backend)
    fresh = World(CacheFormat.MXFP4, [20])
    fresh.write_all(backend)
    world.tokens[0].k[18:] *= 3
    world.write(backend, world.batch([Chunk(18, 2)]))
    assert not torch.equal(world.cache.k, fresh.cache.k)
    fresh.tokens[0].k[18:] *= 3
    fresh.write_all(backend)
    assert torch.equal(world.cache.k, fresh.cache.k)


def test_a_layer_that_reuses_a_selection_owns_no_index_page(backend):
    world = World(CacheFormat.MXFP4, [20])
    rows = world.batch([Chunk(0, 20)])
    k, v, index_k = (world.gather(rows, f) for f in ("k", "v", "index_k"))
    bare = replace(world.cache, index=None, index_layout=None)
    backend.write(bare, rows, k, v, None)
    with pytest.raises(ValueError, match="owns index pages: False"):
        backend.write(bare, rows, k, v, index_k)
    with pytest.raises(ValueError, match="owns index pages: True"):
        backend.write(world.cache, rows, k, v, None)
    with pytest.raises(ValueError, match="owns no index pages"):
        backend.select(bare, rows, world.queries(rows)[0], RULE)


@formats
def test_values_that_are_not_finite_are_counted_and_stored_finite(backend, fmt):
    world = World(fmt, [20])
    world.tokens[0].k[3, 0, 1] = float("nan")
    world.tokens[0].v[4, 1, 2] = float("inf")
    world.tokens[0].index_k[19, 3] = -float("inf")
    world.write_all(backend)
    assert int(world.cache.sanitised) == 3
    kept = world.cache.k_layout.dequantise(world.cache.k_layout.load(world.cache.k.flatten(0, 1)))
    page = world.page_table[0, 0] * 2
    assert kept[page, 3].isfinite().all()


def test_a_strict_backend_refuses_what_is_not_finite():
    world = World(CacheFormat.MXFP4, [20])
    world.tokens[0].v[4, 1, 2] = float("inf")
    with pytest.raises(NonFiniteCacheInput, match="mxfp4_16x32"):
        world.write_all(ReferenceBackend(strict=True))


def test_garbage_in_pad_rows_is_not_counted(backend):
    world = World(CacheFormat.MXFP4, [20])
    world.write(backend, world.batch([Chunk(0, 20)], pads=4))  # pad rows hold NaN
    assert int(world.cache.sanitised) == 0
