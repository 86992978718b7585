"""How the rows of a step are cut into tiles."""

from __future__ import annotations

import torch

from gnomon.engine.attention.triton.plan import Plans, unselected
from gnomon.engine.options import CacheFormat

from .paged import Chunk, World


def rows_of(chunks: list[Chunk | None], pads: int = 0):
    lengths = [1 if c is None else c.start + c.rows for c in chunks]
    return World(CacheFormat.BF16, lengths).batch(chunks, pads=pads)


def test_a_tile_has_rows_of_one_request_and_no_pads():
    tiles = Plans().tiles(rows_of([Chunk(0, 5), None, Chunk(3, 1), Chunk(0, 4)], pads=2), 3)
    assert tiles.bounds.tolist() == [[2, 3], [5, 2], [11, 1], [14, 3], [17, 1]]
    assert (tiles.count, tiles.widest, tiles.rows) == (5, 3, 10)


def test_requests_are_chosen_by_how_many_rows_they_have():
    rows, plans = rows_of([Chunk(9, 1), Chunk(0, 7), Chunk(2, 4), Chunk(8, 2)]), Plans()
    few = plans.tiles(rows, 14, up_to=2)
    many = plans.tiles(rows, 4, longer_than=2)
    assert few.bounds.tolist() == [[0, 1], [12, 2]]
    assert many.bounds.tolist() == [[1, 4], [5, 3], [8, 4]]
    assert few.rows + many.rows == rows.num_rows
    assert plans.tiles(rows, 4, longer_than=7).count == 0


def test_a_batch_is_cut_once():
    rows, plans = rows_of([Chunk(0, 5)]), Plans()
    assert plans.tiles(rows, 3) is plans.tiles(rows, 3)
    assert plans.tiles(rows, 3) is not plans.tiles(rows, 3, up_to=9)


def test_rows_of_no_tile_select_nothing():
    assert (unselected(3, (4, 2, 5), torch.device("cpu")) == -1).all()
    assert unselected(4, (4, 2, 5), torch.device("cpu")).shape == (4, 2, 5)
