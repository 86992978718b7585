"""From a scheduler's step to the tensors of one forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gnomon.engine.attention.rows import RowBatch
from gnomon.engine.runner.sampler import Draw, derive_seed
from gnomon.engine.scheduler.request import Request
from gnomon.engine.scheduler.step import Chunk


@dataclass(frozen=True)
class ModelInput:
    """What one forward reads.

    Attributes:
        token_ids: int64 [R].
        rows: position, slot and request of each row; one page table row a request.
        sample_rows: int64 [S], rows whose logits choose a token.
        draws: how to choose each of the S tokens.
    """

    token_ids: torch.Tensor
    rows: RowBatch
    sample_rows: torch.Tensor
    draws: tuple[Draw, ...]


def build_input(
    chunks: Sequence[Chunk], block_size: int, engine_seed: int, device: torch.device
) -> ModelInput:
    """Lay the chunks' tokens out as rows, one request after another."""
    starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
    stops = np.array([chunk.stop for chunk in chunks], dtype=np.int64)
    counts = stops - starts
    ends = np.cumsum(counts)  # row behind each chunk's last
    request_of_row = np.repeat(np.arange(len(chunks)), counts)
    positions = np.arange(ends[-1]) - np.repeat(ends - stops, counts)
    page_table = _page_table([chunk.request.block_ids for chunk in chunks])
    pages = page_table[request_of_row, positions // block_size]
    token_ids = [t for chunk in chunks for t in chunk.request.tokens(chunk.start, chunk.stop)]
    sampling = [i for i, chunk in enumerate(chunks) if chunk.samples]

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    return ModelInput(
        token_ids=tensor(np.array(token_ids, dtype=np.int64)),
        rows=RowBatch(
            positions=tensor(positions),
            slots=tensor(pages * block_size + positions % block_size),
            request_of_row=tensor(request_of_row),
            page_table=tensor(page_table),
            lengths=tensor(stops),
            block_size=block_size,
        ),
        sample_rows=tensor(ends[sampling] - 1),
        draws=tuple(_draw(chunks[i].request, chunks[i].stop, engine_seed) for i in sampling),
    )


def _page_table(tables: Sequence[Sequence[int]]) -> np.ndarray:
    """Block ids, int64 [N, P of the widest], -1 beyond a request's blocks."""
    filled = np.full((len(tables), max(map(len, tables))), -1, dtype=np.int64)
    for row, table in zip(filled, tables, strict=True):
        row[: len(table)] = table
    return filled


def _draw(request: Request, position: int, engine_seed: int) -> Draw:
    seed = request.sampling.seed
    if seed is None:
        seed = derive_seed(engine_seed, request.arrival)
    return Draw(request.id, request.sampling, seed, position)
