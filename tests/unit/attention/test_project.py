"""Norm, rope, quantise and scatter: every backend against the formulas and the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnomon.engine.attention.heads import HeadNorms, Rotation, rotation
from gnomon.engine.attention.reference.backend import ReferenceBackend
from gnomon.engine.attention.rows import RowBatch
from gnomon.engine.options import CacheFormat

from .paged import Chunk, Shape, World

REFERENCE = ReferenceBackend()
FORMATS = pytest.mark.parametrize("fmt", CacheFormat)


def norms(world: World, *, index: bool = True, exact: bool = False) -> HeadNorms:
    dim = world.shape.dim

    def weight() -> torch.Tensor:
        if exact:
            return torch.randint(-3, 9, (dim,), generator=world.random) / 4
        return torch.randn(dim, generator=world.random)

    own = [weight() for _ in range(4)]
    return HeadNorms(own[0], own[1], *(own[2:] if index else (None, None)), 0.0 if exact else 1e-6)


def columns(world: World, *, index: bool = True) -> int:
    s = world.shape
    heads = s.kv_heads * (s.group + 2) + (s.kv_heads + 1 if index else 0)
    return heads * s.dim


def exact_projection(world: World, rows: RowBatch) -> tuple[torch.Tensor, Rotation]:
    """Numbers whose norms, products and turns are exact: any way to compute them gives one result.

    Entries are twos of either sign, so that a head's root mean square is 2; cosines and sines are
    powers of two.
    """
    random = world.random
    x = torch.randint(0, 2, (rows.num_rows, columns(world)), generator=random) * 4.0 - 2.0
    turns = torch.randint(-2, 3, (2, rows.num_rows, 1, world.shape.dim // 4), generator=random) / 2
    return x, Rotation(turns[0].contiguous(), turns[1].contiguous())


@FORMATS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_bit_is_the_references(backend, fmt, dtype):
    worlds = [World(fmt, [37, 5], Shape(group=3), poison=0xA5) for _ in range(2)]
    seen = []
    for world, one in zip(worlds, (backend, REFERENCE), strict=True):
        rows = world.batch([Chunk(3, 20), Chunk(4, 1)], pads=1)
        x, turn = exact_projection(world, rows)
        seen.append(one.project(world.cache, rows, x.to(dtype), norms(world, exact=True), turn))
    mine, theirs = seen
    assert torch.equal(mine.q, theirs.q)
    assert torch.equal(mine.index_q, theirs.index_q)
    a, b = (w.cache for w in worlds)
    assert torch.equal(a.k, b.k)
    assert torch.equal(a.v, b.v)
    assert torch.equal(a.index, b.index)


@pytest.mark.parametrize("fmt", [CacheFormat.MXFP4, CacheFormat.NVFP4])
def test_pages_of_128_by_128_hold_the_references_bits(backend, fmt):
    shape = Shape(block=128, kv_heads=1, group=2, dim=128, blocks=4)
    worlds = [World(fmt, [300], shape, poison=0) for _ in range(2)]
    for world, one in zip(worlds, (backend, REFERENCE), strict=True):
        rows = world.batch([Chunk(120, 40)])
        x, turn = exact_projection(world, rows)
        one.project(world.cache, rows, x, norms(world, exact=True), turn)
    a, b = (w.cache for w in worlds)
    assert torch.equal(a.k, b.k)
    assert torch.equal(a.v, b.v)
    assert torch.equal(a.index, b.index)


def by_hand(x: torch.Tensor, weight: torch.Tensor, position: int, half: int) -> torch.Tensor:
    """One head x [n] in float64: norm, then the pairs (i, i + half) turned, then the rest."""
    x, weight = x.double(), weight.double()
    x = x / (x.square().mean() + 1e-6).sqrt() * (1 + weight)
    out = x.clone()
    for i in range(half):
        angle = torch.tensor(position * 10_000.0 ** (-i / half), dtype=torch.float64)
        out[i] = x[i] * angle.cos() - x[i + half] * angle.sin()
        out[i + half] = x[i + half] * angle.cos() + x[i] * angle.sin()
    return out


def test_heads_match_the_formula(backend):
    world = World(CacheFormat.FP32, [40])
    s = world.shape
    rows = world.batch([Chunk(28, 9)], pads=1)
    x = torch.randn(rows.num_rows, columns(world), generator=world.random)
    weights = norms(world)
    turn = rotation(rows.positions, 10_000.0, s.dim // 2)
    made = backend.project(world.cache, rows, x, weights, turn)
    heads = x.view(rows.num_rows, -1, s.dim)
    q_heads = s.kv_heads * s.group
    keys = world.cache.k.view(torch.float32).view(s.blocks, s.kv_heads, s.block, s.dim)
    values = world.cache.v.view(torch.float32).view(s.blocks, s.kv_heads, s.block, s.dim)
    index = world.cache.index.view(torch.float32).view(s.blocks, s.block, s.dim)
    for r in range(1, rows.num_rows):
        p = int(rows.positions[r])
        block, at = divmod(int(rows.slots[r]), s.block)

        def close(got: torch.Tensor, head: int, weight: torch.Tensor, r=r, p=p) -> None:
            wanted = by_hand(heads[r, head], weight, p, s.dim // 4)
            torch.testing.assert_close(got.double(), wanted, atol=2e-5, rtol=1e-5)

        for h in range(q_heads):
            close(made.q[r, h], h, weights.q)
        for h in range(s.kv_heads):
            close(keys[block, h, at], q_heads + h, weights.k)
            assert torch.equal(values[block, h, at], heads[r, q_heads + s.kv_heads + h])
            close(made.index_q[r, h], q_heads + 2 * s.kv_heads + h, weights.index_q)
        close(index[block, at], q_heads + 3 * s.kv_heads, weights.index_k)


def test_a_row_without_a_slot_writes_nothing_but_has_queries(backend):
    world = World(CacheFormat.MXFP4, [20], poison=0xA5)
    rows = world.batch([Chunk(0, 20)])
    rows = replace(rows, slots=torch.full_like(rows.slots, -1))
    x, turn = exact_projection(world, rows)
    weights = norms(world, exact=True)
    made = backend.project(world.cache, rows, x, weights, turn)
    theirs = REFERENCE.project(world.cache, rows, x, weights, turn)
    assert torch.equal(made.q, theirs.q)
    for pool in (world.cache.k, world.cache.v, world.cache.index):
        assert (pool == 0xA5).all()


def test_a_layer_without_an_index_branch_has_no_index_queries(backend):
    world = World(CacheFormat.MXFP4, [20], poison=0)
    rows = world.batch([Chunk(0, 20)])
    whole, turn = exact_projection(world, rows)
    x = whole[:, : columns(world, index=False)]
    weights = norms(world, index=False, exact=True)
    cache = replace(world.cache, index=None, index_layout=None)
    other = replace(cache, k=cache.k.clone(), v=cache.v.clone())
    made = backend.project(cache, rows, x, weights, turn)
    theirs = REFERENCE.project(other, rows, x, weights, turn)
    assert made.index_q is None
    assert torch.equal(made.q, theirs.q)
    assert torch.equal(cache.k, other.k)
    assert torch.equal(cache.v, other.v)
    with pytest.raises(ValueError, match="index keys given: False"):
        backend.project(world.cache, rows, x, weights, turn)


def test_index_queries_in_e4m3_are_nearest_and_saturate(backend):
    world = World(CacheFormat.MXFP4, [9])
    rows = world.batch([Chunk(0, 9)])
    x, turn = exact_projection(world, rows)
    turn = Rotation(turn.cos * 301, turn.sin * 7)
    x[2, -world.shape.dim * 2] = float("nan")
    weights = norms(world, exact=True)
    made = backend.project(world.cache, rows, x, weights, turn, torch.float8_e4m3fn).index_q
    assert made.dtype == torch.float8_e4m3fn
    plain = REFERENCE.project(world.cache, rows, x, weights, turn).index_q
    assert plain.abs().nan_to_num().max() > 448
    wanted = plain.clamp(-448, 448).to(torch.float8_e4m3fn)
    seen = ~plain.isnan()
    assert torch.equal(made.float()[seen], wanted.float()[seen])
    assert made.float()[~seen].isnan().all()


def test_what_is_not_finite_is_counted_once(backend):
    worlds = [World(CacheFormat.NVFP4, [9], poison=0) for _ in range(2)]
    for world, one in zip(worlds, (backend, REFERENCE), strict=True):
        rows = world.batch([Chunk(0, 9)], pads=1)
        x, turn = exact_projection(world, rows)
        x[0] = float("nan")  # a pad row
        x[3, world.shape.kv_heads * world.shape.group * world.shape.dim + 2] = float("nan")  # a key
        x[5, 5 - 2 * world.shape.dim] = float("inf")  # an index query: not for the cache
        start = world.shape.kv_heads * (world.shape.group + 1) * world.shape.dim
        x[6, start + 3], x[7, start + 40] = float("inf"), -float("inf")  # values
        one.project(world.cache, rows, x, norms(world, exact=True), turn)
    a, b = (w.cache for w in worlds)
    assert int(a.sanitised) == int(b.sanitised) == world.shape.dim + 2
    assert torch.equal(a.k, b.k)
    assert torch.equal(a.v, b.v)
