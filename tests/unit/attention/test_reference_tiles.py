"""The reference backend streams over tiles; where they end must not matter."""

from __future__ import annotations

import pytest

from gnomon.engine.attention.reference import dense, pages, select, sparse
from gnomon.engine.attention.reference.backend import ReferenceBackend
from gnomon.engine.attention.rows import SelectionRule
from gnomon.engine.options import CacheFormat

from .paged import Chunk, World, assert_same, observe

TILES = [
    (select, "_TILE_ELEMENTS", 1),
    (select, "_TILE_ELEMENTS", 5000),
    (sparse, "TILE_ELEMENTS", 1),
    (dense, "TILE_ELEMENTS", 1),
    (dense, "_BLOCK_TILE", 1),
    (dense, "_BLOCK_TILE", 3),
    (pages, "_PAGE_TILE", 1),
    (pages, "_PAGE_TILE", 3),
]


@pytest.mark.parametrize(("module", "name", "size"), TILES)
@pytest.mark.parametrize("window", [None, 37])
def test_tile_sizes_change_nothing(monkeypatch, module, name, size, window):
    backend = ReferenceBackend()
    chunks = [Chunk(100, 1), Chunk(20, 60), Chunk(150, 1), Chunk(90, 5)]
    world = World(CacheFormat.MXFP4, [c.start + c.rows for c in chunks], whole=True)
    world.write_all(backend)
    rows = world.batch(chunks, pads=1)
    rule = SelectionRule(topk_blocks=4, init_blocks=1, local_blocks=2)
    expected = observe(backend, world, rows, rule, window)
    monkeypatch.setattr(module, name, size)
    assert_same(observe(backend, world, rows, rule, window), expected)
