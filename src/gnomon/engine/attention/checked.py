"""The debug mode of attention: what kernels rely on is checked before they run.

A kernel that is given a block outside the pool reads another request's tokens, or another
process's, and says nothing. :class:`CheckedBackend` wraps any backend and refuses such a step with
a sentence. It waits for the device before every operation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from gnomon.engine.attention.backend import AttentionBackend
from gnomon.engine.attention.heads import HeadNorms, Queries, Rotation
from gnomon.engine.attention.rows import RowBatch, Selection, SelectionRule
from gnomon.engine.cache.pools import LayerCache
from gnomon.engine.errors import AttentionContractError


class CheckedBackend:
    """Implements :class:`gnomon.engine.attention.backend.AttentionBackend` by another one.

    Every operation raises :class:`AttentionContractError` if the step breaks what the operation
    relies on; see :func:`check_rows` and :func:`check_selection`.

    Args:
        backend: what does the work.
    """

    def __init__(self, backend: AttentionBackend) -> None:
        self.backend = backend
        self.name = backend.name

    def project(
        self,
        cache: LayerCache,
        rows: RowBatch,
        projected: torch.Tensor,
        norms: HeadNorms,
        turn: Rotation,
        index_dtype: torch.dtype | None = None,
    ) -> Queries:
        """Check rows and slots, then project."""
        check_rows(cache, rows)
        check_slots(cache, rows)
        return self.backend.project(cache, rows, projected, norms, turn, index_dtype)

    def write(
        self,
        cache: LayerCache,
        rows: RowBatch,
        k: torch.Tensor,
        v: torch.Tensor,
        index_k: torch.Tensor | None,
    ) -> None:
        """Check rows and slots, then write."""
        check_rows(cache, rows)
        check_slots(cache, rows)
        self.backend.write(cache, rows, k, v, index_k)

    def select(
        self, cache: LayerCache, rows: RowBatch, index_q: torch.Tensor, rule: SelectionRule
    ) -> Selection:
        """Check the rows, select, and check what was selected."""
        check_rows(cache, rows)
        selection = self.backend.select(cache, rows, index_q, rule)
        check_selection(rows, selection, rule)
        return selection

    def sparse(
        self, cache: LayerCache, rows: RowBatch, q: torch.Tensor, selection: Selection
    ) -> torch.Tensor:
        """Check rows and selection, then attend."""
        check_rows(cache, rows)
        check_selection(rows, selection)
        return self.backend.sparse(cache, rows, q, selection)

    def dense(
        self, cache: LayerCache, rows: RowBatch, q: torch.Tensor, window: int | None = None
    ) -> torch.Tensor:
        """Check the rows, then attend."""
        check_rows(cache, rows)
        return self.backend.dense(cache, rows, q, window)


def check_rows(cache: LayerCache, rows: RowBatch) -> None:
    """Check that every row lies in its request, and every page it may read in the pool.

    Raises:
        AttentionContractError: a row's request, position or last seen position, or a page table
            entry, is out of bounds.
    """
    requests, width = rows.page_table.shape
    live = (rows.positions >= 0) & (rows.request_of_row >= 0)
    _refuse(
        rows.request_of_row >= requests,
        lambda r: (
            f"row {r} belongs to request {int(rows.request_of_row[r])}, but the step has "
            f"{requests} requests"
        ),
    )
    request = rows.request_of_row.clamp(min=0)
    length = rows.lengths[request]
    _refuse(
        live & (rows.positions >= length),
        lambda r: (
            f"row {r} is at position {int(rows.positions[r])}, past the end of its request "
            f"of {int(length[r])} tokens"
        ),
    )
    _refuse(
        live & ((rows.seen_to < rows.positions) | (rows.seen_to >= length)),
        lambda r: (
            f"row {r} at position {int(rows.positions[r])} sees up to position "
            f"{int(rows.seen_to[r])}, which is not between its own and the end of its request of "
            f"{int(length[r])} tokens"
        ),
    )
    pages = -(-rows.lengths // rows.block_size)
    _refuse(
        pages > width,
        lambda i: (
            f"request {i} has {int(rows.lengths[i])} tokens, but its page table has room for "
            f"{width} pages of {rows.block_size}"
        ),
    )
    used = torch.arange(width, device=pages.device) < pages[:, None]
    used &= torch.isin(torch.arange(requests, device=pages.device), request[live])[:, None]
    blocks = cache.k.shape[0]
    outside = used & ((rows.page_table < 0) | (rows.page_table >= blocks))
    _refuse(
        outside.flatten(),
        lambda at: (
            f"page {at % width} of request {at // width} is block "
            f"{int(rows.page_table[at // width, at % width])}, but the pool has {blocks} blocks"
        ),
    )


def check_slots(cache: LayerCache, rows: RowBatch) -> None:
    """Check that a step writes inside the pool, where its page table says, and nowhere twice.

    Raises:
        AttentionContractError: a slot is out of bounds, is not the place of its row's position, or
            is written by two rows.
    """
    size, blocks = rows.block_size, cache.k.shape[0]
    written = rows.slots >= 0
    _refuse(
        rows.slots >= blocks * size,
        lambda r: (
            f"row {r} writes to slot {int(rows.slots[r])}, but the pool has {blocks} blocks "
            f"of {size} tokens"
        ),
    )
    owned = written & (rows.request_of_row >= 0) & (rows.positions >= 0)
    position = rows.positions.clamp(min=0)
    block = (position // size).clamp(max=rows.page_table.shape[1] - 1)
    place = rows.page_table[rows.request_of_row.clamp(min=0), block] * size + position % size
    _refuse(
        owned & (rows.slots != place),
        lambda r: (
            f"row {r} at position {int(rows.positions[r])} writes to slot "
            f"{int(rows.slots[r])}, but its page table puts that position at {int(place[r])}"
        ),
    )
    ordered, order = rows.slots.sort(stable=True)
    twice = torch.zeros_like(written)
    twice[order[1:]] = (ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0)
    _refuse(
        twice, lambda r: f"row {r} writes to slot {int(rows.slots[r])}, which another row writes to"
    )


def check_selection(
    rows: RowBatch, selection: Selection, rule: SelectionRule | None = None
) -> None:
    """Check the contract of a selection (docs/design/selection.md).

    Ids are distinct, not past the row's own block, left-packed with -1 behind them, and end with
    the row's own block; a pad row has none. With a rule, the forced blocks are the last ones, in
    ascending order.

    Raises:
        AttentionContractError: a list breaks the contract; the message names row and head.
    """
    blocks = selection.blocks
    _, heads, slots = blocks.shape
    live = (rows.positions >= 0) & (rows.request_of_row >= 0)
    own = (rows.positions // rows.block_size)[:, None, None]

    def refuse(bad: torch.Tensor, what: str) -> None:
        def sentence(at: int) -> str:
            row, head = divmod(at, heads)
            return (
                f"the selection of row {row}, head {head}, at position {int(rows.positions[row])}, "
                f"{what}: {blocks[row, head].tolist()}"
            )

        _refuse(bad.flatten(), sentence)

    valid = blocks >= 0
    refuse((valid.any(-1)) & ~live[:, None], "is not empty, but the row is padding")
    inside = live[:, None]
    refuse(inside & (blocks < -1).any(-1), "has an id below -1")
    refuse(inside & (blocks > own).any(-1), "has a block past the row's own")
    refuse(inside & (valid[..., 1:] & ~valid[..., :-1]).any(-1), "has an id after its padding")
    ordered = blocks.sort(-1).values
    same = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
    refuse(inside & same.any(-1), "has a block twice")
    count = valid.sum(-1, keepdim=True)
    last = blocks.gather(-1, (count - 1).clamp(min=0)).squeeze(-1)
    refuse(inside & (last != own.squeeze(-1)), "does not end with the row's own block")
    if rule is None:
        return
    visible = own + 1
    local = visible.clamp(max=rule.local_blocks)
    init = (visible - local).clamp(max=rule.init_blocks)
    nth = torch.arange(slots, device=blocks.device) - (count - local - init)
    forced = torch.where(nth < init, nth, visible - local + (nth - init))
    wrong = (nth >= 0) & (nth < init + local) & (blocks != forced)
    missing = (count < local + init).squeeze(-1)
    refuse(inside & (missing | wrong.any(-1)), "does not end with its forced blocks in order")


def _refuse(bad: torch.Tensor, sentence: Callable[[int], str]) -> None:
    """Raise with the sentence for the first true entry of bad [n], if there is one."""
    if bool(bad.any()):
        raise AttentionContractError(sentence(int(bad.nonzero()[0])))
