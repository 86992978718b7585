"""Attend rows to every page of their request, or to a window at its end."""

from __future__ import annotations

import torch

from gnomon.engine.attention.reference.groups import live_rows
from gnomon.engine.attention.reference.pages import TILE_ELEMENTS, Partial, attend
from gnomon.engine.attention.rows import RowBatch
from gnomon.engine.cache.pools import LayerCache

#: Blocks attended to at once; more are merged by log-sum-exp.
_BLOCK_TILE = 16


def dense(
    cache: LayerCache, rows: RowBatch, q: torch.Tensor, window: int | None = None
) -> torch.Tensor:
    """Softmax attention at scale D^-0.5, up to the last position each row sees.

    Args:
        cache: the layer's pages, with this step's keys and values already written.
        rows: R rows.
        q: [R, Hq, D]; query head i uses KV head i // (Hq / Hk).
        window: attend to the ``window`` positions up to the row's own only, and to what it sees
            after it.

    Returns:
        [R, Hq, D] in q's dtype, computed in fp32; zeros for pad rows.
    """
    out = torch.zeros_like(q)
    live = live_rows(rows)
    q_heads, dim = q.shape[1:]
    tile = max(1, TILE_ELEMENTS // (q_heads * _BLOCK_TILE * rows.block_size))
    for chunk in live.split(tile) if len(live) else ():
        queries = (q[chunk].float() * dim**-0.5).view(len(chunk), cache.pages.kv_heads, -1, dim)
        partial = _attend_chunk(cache, rows, chunk, queries, window)
        out[chunk] = partial.output().view(-1, q_heads, dim).to(q.dtype)
    return out


def _attend_chunk(
    cache: LayerCache,
    rows: RowBatch,
    chunk: torch.Tensor,
    queries: torch.Tensor,
    window: int | None,
) -> Partial:
    """Attend rows ``chunk`` [L] with queries [L, Hk, G, D], streaming over tiles of blocks."""
    size, heads = rows.block_size, queries.shape[1]
    position = rows.positions[chunk].unsqueeze(-1)
    newest = rows.seen_to[chunk].unsqueeze(-1)
    oldest = torch.zeros_like(position) if window is None else position + 1 - window
    # Tiles begin at multiples of their size, so that a row's sum does not depend on other rows.
    first_block = max(0, int(oldest.min()) // size) // _BLOCK_TILE * _BLOCK_TILE
    last_block = int(newest.max()) // size
    merged: Partial | None = None
    for b0 in range(first_block, last_block + 1, _BLOCK_TILE):
        block = torch.arange(b0, min(b0 + _BLOCK_TILE, last_block + 1), device=position.device)
        physical = rows.page_table[rows.request_of_row[chunk].unsqueeze(-1), block]
        first = (oldest - block * size).clamp(min=0)
        stop = (newest + 1 - block * size).clamp(max=size)
        per_head = (x.unsqueeze(1).expand(-1, heads, -1) for x in (physical, first, stop))
        partial = attend(cache, queries, *per_head)
        merged = partial if merged is None else merged.merge(partial)
    assert merged is not None  # a live row sees at least its own block
    return merged
