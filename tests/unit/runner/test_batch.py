"""A step becomes rows: positions, slots and pages of every token, and the rows that sample."""

from __future__ import annotations

import torch

from gnomon.engine.cache.manager import BlockTable
from gnomon.engine.runner.batch import build_input
from gnomon.engine.runner.sampler import derive_seed
from gnomon.engine.scheduler.request import Request, SamplingParams
from gnomon.engine.scheduler.step import Chunk


def request(
    name: str, prompt: int, blocks: list[int], *, arrival: int, seed: int | None
) -> Request:
    ids = tuple(100 * (arrival + 1) + i for i in range(prompt))
    table = BlockTable(block_ids=blocks)
    return Request(name, ids, SamplingParams(seed=seed), arrival=arrival, table=table)


def test_decode_rows_and_prefill_chunks_are_laid_out_one_after_another() -> None:
    decoding = request("a", 5, [7, 2], arrival=0, seed=42)
    decoding.output_ids = [11]
    middle = request("b", 12, [3, 9, 5], arrival=1, seed=None)
    last = request("c", 3, [1], arrival=2, seed=None)
    chunks = [
        Chunk(decoding, 5, 6, samples=True),
        Chunk(middle, 3, 6, samples=False),
        Chunk(last, 0, 3, samples=True),
    ]
    batch = build_input(chunks, block_size=4, engine_seed=8, device=torch.device("cpu"))
    assert batch.token_ids.tolist() == [11, 203, 204, 205, 300, 301, 302]
    rows = batch.rows
    assert rows.positions.tolist() == [5, 3, 4, 5, 0, 1, 2]
    assert rows.slots.tolist() == [2 * 4 + 1, 3 * 4 + 3, 9 * 4, 9 * 4 + 1, 4, 5, 6]
    assert rows.request_of_row.tolist() == [0, 1, 1, 1, 2, 2, 2]
    assert rows.page_table.tolist() == [[7, 2, -1], [3, 9, 5], [1, -1, -1]]
    assert rows.lengths.tolist() == [6, 6, 3]
    assert (rows.block_size, rows.num_rows) == (4, 7)
    for name in ("positions", "slots", "request_of_row", "page_table", "lengths"):
        assert getattr(rows, name).dtype is torch.int64, name
    assert batch.sample_rows.tolist() == [0, 6]
    assert [(d.request_id, d.seed, d.position) for d in batch.draws] == [
        ("a", 42, 6),
        ("c", derive_seed(8, 2), 3),
    ]


def test_a_step_in_which_nothing_samples_has_no_draws() -> None:
    chunk = Chunk(request("a", 9, [0, 1, 2], arrival=0, seed=None), 0, 4, samples=False)
    batch = build_input([chunk], block_size=4, engine_seed=0, device=torch.device("cpu"))
    assert batch.draws == ()
    assert batch.sample_rows.tolist() == []
