"""From a scheduler's step to the tensors of one forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gnomon.engine.attention.rows import RowBatch
from gnomon.engine.runner.sampler import Draw, derive_seed
from gnomon.engine.scheduler.request import Request
from gnomon.engine.scheduler.scheduler import Chunk


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
    token_ids: list[int] = []
    positions: list[torch.Tensor] = []
    slots: list[torch.Tensor] = []
    sample_rows: list[int] = []
    draws: list[Draw] = []
    tables = [chunk.request.block_ids for chunk in chunks]
    page_table = torch.full((len(chunks), max(map(len, tables))), -1, dtype=torch.int64)
    for i, (chunk, table) in enumerate(zip(chunks, tables, strict=True)):
        page_table[i, : len(table)] = torch.tensor(table, dtype=torch.int64)
        token_ids += chunk.request.tokens(chunk.start, chunk.stop)
        position = torch.arange(chunk.start, chunk.stop)
        positions.append(position)
        slots.append(page_table[i, position // block_size] * block_size + position % block_size)
        if chunk.samples:
            sample_rows.append(len(token_ids) - 1)
            draws.append(_draw(chunk.request, chunk.stop, engine_seed))
    counts = torch.tensor([chunk.stop - chunk.start for chunk in chunks])
    rows = RowBatch(
        positions=torch.cat(positions).to(device),
        slots=torch.cat(slots).to(device),
        request_of_row=torch.repeat_interleave(torch.arange(len(chunks)), counts).to(device),
        page_table=page_table.to(device),
        lengths=torch.tensor([chunk.stop for chunk in chunks], device=device),
        block_size=block_size,
    )
    return ModelInput(
        token_ids=torch.tensor(token_ids, dtype=torch.int64, device=device),
        rows=rows,
        sample_rows=torch.tensor(sample_rows, dtype=torch.int64, device=device),
        draws=tuple(draws),
    )


def _draw(request: Request, position: int, engine_seed: int) -> Draw:
    seed = request.sampling.seed
    if seed is None:
        seed = derive_seed(engine_seed, request.arrival)
    return Draw(request.id, request.sampling, seed, position)
