"""Every backend against the definition, written as loops over tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnomon.engine.attention.rows import SelectionRule
from gnomon.engine.options import CacheFormat

from .paged import Chunk, Shape, World, observe

RULE = SelectionRule(topk_blocks=4)

# What the requests of a step look like (block 16): name to chunks.
STEPS: dict[str, list[Chunk]] = {
    "first tokens": [Chunk(0, 1), Chunk(0, 2), Chunk(0, 16), Chunk(0, 17)],
    "decode around block ends": [Chunk(n - 1, 1) for n in (1, 15, 16, 17, 63, 64, 65, 130)],
    "prefill over many blocks": [Chunk(0, 100)],
    "a chunk on a block boundary": [Chunk(80, 32)],
    "a chunk off every boundary": [Chunk(77, 30)],
    "verify rows that cross a block": [Chunk(93, 5), Chunk(126, 5), Chunk(0, 5)],
    "everything at once": [Chunk(120, 1), Chunk(0, 20), Chunk(90, 1), Chunk(61, 7), Chunk(70, 1)],
}


def compare(backend, world: World, chunks, rule=RULE, window: int | None = None) -> None:
    world.write_all(backend)
    rows = world.batch(chunks, pads=1)
    seen = observe(backend, world, rows, rule, window)
    blocks, sparse, dense = world.expect(rows, rule, window)
    assert torch.equal(seen.blocks, blocks)
    torch.testing.assert_close(seen.sparse, sparse, atol=3e-6, rtol=1e-5)
    torch.testing.assert_close(seen.dense, dense, atol=3e-6, rtol=1e-5)


def lengths(chunks: list[Chunk]) -> list[int]:
    return [c.start + c.rows for c in chunks]


@pytest.mark.parametrize("fmt", CacheFormat)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_matches_the_definition(backend, fmt, step):
    chunks = STEPS[step]
    compare(backend, World(fmt, lengths(chunks), whole=True), chunks)


@pytest.mark.parametrize("fmt", CacheFormat)
def test_real_numbers_match_the_definition(backend, fmt):
    chunks = STEPS["everything at once"]
    compare(backend, World(fmt, lengths(chunks), seed=3), chunks)


@pytest.mark.parametrize("fmt", CacheFormat)
@pytest.mark.parametrize("length", [1, 127, 128, 129, 640])
def test_pages_of_128_by_128_match_the_definition(backend, fmt, length):
    shape = Shape(block=128, kv_heads=2, group=1, dim=128, blocks=8)
    rows = min(length, 2)
    compare(
        backend,
        World(fmt, [length], shape, whole=True),
        [Chunk(length - rows, rows)],
        SelectionRule(topk_blocks=3),
    )


@pytest.mark.parametrize(
    "rule",
    [
        SelectionRule(topk_blocks=1),
        SelectionRule(topk_blocks=2, init_blocks=1),
        SelectionRule(topk_blocks=5, init_blocks=1, local_blocks=2),
        SelectionRule(topk_blocks=4, init_blocks=2, local_blocks=2),
        SelectionRule(topk_blocks=16, init_blocks=3, local_blocks=3),
    ],
    ids=str,
)
def test_forced_blocks_match_the_definition(backend, rule):
    chunks = STEPS["prefill over many blocks"] + STEPS["verify rows that cross a block"]
    compare(backend, World(CacheFormat.MXFP4, lengths(chunks), whole=True), chunks, rule)


@pytest.mark.parametrize("window", [1, 5, 16, 40, 10_000])
def test_a_window_matches_the_definition(backend, window):
    chunks = STEPS["everything at once"]
    compare(backend, World(CacheFormat.BF16, lengths(chunks)), chunks, RULE, window)


@pytest.mark.parametrize("fmt", CacheFormat)
@pytest.mark.parametrize("window", [None, 20])
def test_a_block_of_drafts_sees_the_context_and_itself(backend, fmt, window):
    """Blocks that end in, at and past a page's end; a row of its own among them."""
    chunks = [Chunk(29, 3), Chunk(44, 4), Chunk(30, 4), Chunk(17, 1)]
    world = World(fmt, [c.start + c.rows for c in chunks], Shape(group=1))
    world.write_all(backend)
    rows = world.batch(chunks, pads=1)
    ends = torch.tensor([c.start + c.rows - 1 for c in chunks])
    blocks = replace(rows, last_seen=ends[rows.request_of_row].where(rows.positions >= 0, -1))
    _, q = world.queries(rows)
    seen = backend.dense(world.cache, blocks, q, window)
    _, _, wanted = world.expect(blocks, RULE, window)
    torch.testing.assert_close(seen, wanted, atol=3e-6, rtol=1e-5)
    alone = backend.dense(world.cache, rows, q, window)
    assert not torch.allclose(seen, alone), "rows before the last see more than their past"


@pytest.mark.parametrize("kv", [CacheFormat.BF16, CacheFormat.FP8, CacheFormat.MXFP4])
def test_index_keys_may_have_their_own_format(backend, kv):
    chunks = STEPS["verify rows that cross a block"]
    world = World(kv, lengths(chunks), index_fmt=CacheFormat.NVFP4, whole=True)
    compare(backend, world, chunks)


@pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (1, 8), (4, 1), (3, 5)])
def test_any_head_layout_matches_the_definition(backend, kv_heads, group):
    chunks = [Chunk(40, 6), Chunk(99, 1)]
    shape = Shape(kv_heads=kv_heads, group=group)
    compare(backend, World(CacheFormat.MXFP4, lengths(chunks), shape, whole=True), chunks)
