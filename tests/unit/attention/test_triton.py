"""The Triton kernels against the reference, in steps small enough for the interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnomon.engine.attention.heads import HeadNorms, rotation
from gnomon.engine.attention.reference.backend import ReferenceBackend
from gnomon.engine.attention.rows import SelectionRule
from gnomon.engine.attention.triton.backend import TritonBackend
from gnomon.engine.errors import NonFiniteCacheInput
from gnomon.engine.options import CacheFormat

from .conftest import BACKENDS, ON_GPU
from .paged import Chunk, OnGpu, Shape, World, observe

formats = pytest.mark.parametrize("fmt", CacheFormat)
REFERENCE = ReferenceBackend()


@pytest.fixture
def triton():
    return BACKENDS["triton"]()


@formats
@pytest.mark.parametrize(("block", "dim"), [(16, 32), (16, 128), (64, 64)])
def test_every_byte_is_the_layouts(triton, fmt, block, dim):
    """Zeros of both signs, ties, subnormals, values that overflow bf16, NaN and infinities.

    Blocks of 64 tokens hold 4-bit values in their own order.
    """
    shape = Shape(block=block, dim=dim)
    worlds = [World(fmt, [37], shape, poison=0xA5) for _ in range(2)]
    for world in worlds:
        for x in (world.tokens[0].k, world.tokens[0].v, world.tokens[0].index_k.unsqueeze(1)):
            x.mul_(torch.exp2(torch.arange(37.0) - 18)[:, None, None])
            x[3], x[4], x[5, 0, 3], x[6, -1, 2] = 0, -0.0, float("nan"), -float("inf")
            x[7], x[9, :, 5], x[11] = 1e-40, 3.4e38, float("nan")
            x[10] = (torch.arange(dim) - dim // 2) * 0.25
    rows = worlds[0].batch([Chunk(0, 37)], pads=1)
    for world, backend in zip(worlds, (triton, REFERENCE), strict=True):
        world.write(backend, rows)
    a, b = (w.cache for w in worlds)
    assert torch.equal(a.k, b.k)
    assert torch.equal(a.v, b.v)
    assert torch.equal(a.index, b.index)
    assert int(a.sanitised) == int(b.sanitised) > 0


@formats
def test_a_mixed_step_is_the_references(triton, fmt):
    """Decode rows around block ends, verify rows that cross one, a short prefill, padding."""
    chunks = [Chunk(64, 1), Chunk(93, 4), Chunk(0, 3), None, Chunk(47, 1)]
    world = World(fmt, [65, 97, 3, 1, 48], whole=True)
    world.write_all(REFERENCE)
    rows = world.batch(chunks, pads=1)
    rule = SelectionRule(topk_blocks=3)
    mine = observe(triton, world, rows, rule, window=40)
    theirs = observe(REFERENCE, world, rows, rule, window=40)
    assert torch.equal(mine.blocks, theirs.blocks)
    torch.testing.assert_close(mine.sparse, theirs.sparse, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(mine.dense, theirs.dense, atol=2e-6, rtol=1e-5)


@formats
def test_pages_of_128_by_128_are_the_references(triton, fmt):
    shape = Shape(block=128, kv_heads=1, group=2, dim=128, blocks=8)
    world = World(fmt, [640], shape, seed=5)
    world.write_all(REFERENCE)
    rows = world.batch([Chunk(638, 2)])
    rule = SelectionRule(topk_blocks=3, init_blocks=1)
    mine, theirs = (observe(b, world, rows, rule) for b in (triton, REFERENCE))
    assert torch.equal(mine.blocks, theirs.blocks)
    torch.testing.assert_close(mine.sparse, theirs.sparse, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(mine.dense, theirs.dense, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("poison", [0x7F, 0xFF])
def test_garbage_past_the_end_is_not_seen(triton, poison):
    rule = SelectionRule(topk_blocks=3)
    clean, foul = (World(CacheFormat.MXFP4, [33], poison=p, whole=True) for p in (0, poison))
    for world in (clean, foul):
        world.write_all(REFERENCE)
    rows = clean.batch([Chunk(32, 1)])
    a, b = (observe(triton, world, rows, rule) for world in (clean, foul))
    assert torch.equal(a.sparse, b.sparse)
    assert torch.equal(a.dense, b.dense)
    assert b.sparse.isfinite().all()


@pytest.mark.parametrize("processors", [1, 3, 40])
def test_splits_change_nothing(triton, monkeypatch, processors):
    """Parts are cut by the device's size; which device it is must not matter."""
    world = World(CacheFormat.NVFP4, [150], whole=True)
    world.write_all(REFERENCE)
    rows = world.batch([Chunk(148, 2)])
    rule = SelectionRule(topk_blocks=5)
    owner = getattr(triton, "backend", triton)
    arithmetic = replace(owner._arithmetic, multiprocessors=processors)
    monkeypatch.setattr(owner, "_arithmetic", arithmetic)
    mine, theirs = (observe(b, world, rows, rule) for b in (triton, REFERENCE))
    assert torch.equal(mine.blocks, theirs.blocks)
    torch.testing.assert_close(mine.sparse, theirs.sparse, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(mine.dense, theirs.dense, atol=2e-6, rtol=1e-5)


def test_a_strict_backend_refuses_what_is_not_finite(triton):
    world = World(CacheFormat.MXFP4, [20])
    world.tokens[0].v[4, 1, 2] = float("inf")
    getattr(triton, "backend", triton).strict = True
    with pytest.raises(NonFiniteCacheInput, match="mxfp4_16x32"):
        world.write_all(triton)


def test_a_backend_may_make_e4m3_index_queries_of_its_own_accord():
    world = World(CacheFormat.MXFP4, [4])
    dim = world.shape.dim
    rows = world.batch([Chunk(0, 4)])
    x = torch.randn(4, (2 * 4 + 3) * dim)
    norms = HeadNorms(*torch.zeros(4, dim), 1e-6)
    turn = rotation(rows.positions, 1e4, dim // 2)
    made = {}
    for dtype in (None, torch.float8_e4m3fn):
        own = TritonBackend(index_dtype=dtype)
        made[dtype] = (OnGpu(own) if ON_GPU else own).project(world.cache, rows, x, norms, turn)
    assert made[None].index_q.dtype == torch.float32
    wanted = made[None].index_q.to(torch.float8_e4m3fn).float()
    assert torch.equal(made[torch.float8_e4m3fn].index_q.float(), wanted)
