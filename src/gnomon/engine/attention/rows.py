"""One batch of token rows: the only thing attention knows about a step.

Everything about a row follows from its absolute position, so that prefill, chunked prefill,
decode, verification and padding are the same function.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RowBatch:
    """Token rows of one step, grouped by request and ascending in position within a request.

    Dims: R rows, N requests, P pages of the widest request. A pad row has position, slot and
    request -1: it writes nothing, selects nothing, and its attention output is zero.

    Attributes:
        positions: int64 [R], absolute position of the row's token in its request.
        slots: int64 [R], ``block_id * block_size + offset`` where K, V and index key go.
        request_of_row: int64 [R], row of ``page_table`` that the token belongs to.
        page_table: int64 [N, P], block ids in logical order, -1 beyond the request's pages.
        lengths: int64 [N], tokens of the request in the cache after this step's write.
        block_size: tokens a page.
        last_seen: int64 [R], last position a row attends to, for dense attention alone: not below
            its own, and below the request's length. None: its own. Rows of a block of drafts that
            see each other all have the block's last position.
    """

    positions: torch.Tensor
    slots: torch.Tensor
    request_of_row: torch.Tensor
    page_table: torch.Tensor
    lengths: torch.Tensor
    block_size: int
    last_seen: torch.Tensor | None = None

    @property
    def seen_to(self) -> torch.Tensor:
        """int64 [R], last position a row attends to densely."""
        return self.positions if self.last_seen is None else self.last_seen

    @property
    def num_rows(self) -> int:
        """R, pad rows included."""
        return self.positions.shape[0]


@dataclass(frozen=True)
class SelectionRule:
    """How many blocks a row keeps (engine decision 4; MSA paper, arXiv 2606.13392).

    Attributes:
        topk_blocks: most blocks a row keeps, forced ones included.
        init_blocks: leading blocks always kept.
        local_blocks: last visible blocks always kept, the row's own among them; at least 1.
    """

    topk_blocks: int
    init_blocks: int = 0
    local_blocks: int = 1


@dataclass(frozen=True)
class Selection:
    """Blocks each row attends to.

    Attributes:
        blocks: int64 [R, Hi, topk_blocks], LOGICAL block ids (position // block_size): history by
            score descending (lower id on ties), forced blocks after it, own block last; -1 fills.
    """

    blocks: torch.Tensor
