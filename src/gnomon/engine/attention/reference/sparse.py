"""Attend rows to the blocks selected for them."""

from __future__ import annotations

import torch

from gnomon.engine.attention.reference.groups import live_rows
from gnomon.engine.attention.reference.pages import TILE_ELEMENTS, attend
from gnomon.engine.attention.rows import RowBatch, Selection
from gnomon.engine.cache.pools import LayerCache


def sparse(
    cache: LayerCache, rows: RowBatch, q: torch.Tensor, selection: Selection
) -> torch.Tensor:
    """Softmax attention at scale D^-0.5 over the selected blocks, up to each row's own position.

    Args:
        cache: the layer's pages, with this step's keys and values already written.
        rows: R rows.
        q: [R, Hq, D]; query head i uses KV head and selection i // (Hq / Hk).
        selection: logical blocks per row and KV head.

    Returns:
        [R, Hq, D] in q's dtype, computed in fp32; zeros for pad rows and where nothing is selected.
    """
    out = torch.zeros_like(q)
    live = live_rows(rows)
    heads, (q_heads, dim) = cache.pages.kv_heads, q.shape[1:]
    slots, size = selection.blocks.shape[2], rows.block_size
    tile = max(1, TILE_ELEMENTS // (q_heads * slots * size))
    for chunk in live.split(tile) if len(live) else ():
        chosen = selection.blocks[chunk]  # [L, Hk, slots]
        request = rows.request_of_row[chunk][:, None, None]
        known = (chosen >= 0) & (chosen < rows.page_table.shape[1])
        blocks = torch.where(known, rows.page_table[request, chosen.where(known, 0)], -1)
        seen = rows.positions[chunk][:, None, None] + 1 - chosen * size
        stop = seen.clamp(max=size)
        queries = (q[chunk].float() * dim**-0.5).view(len(chunk), heads, -1, dim)
        partial = attend(cache, queries, blocks, torch.zeros_like(stop), stop)
        out[chunk] = partial.output().view(-1, q_heads, dim).to(q.dtype)
    return out
