"""Store the keys, values and index keys of a step in their pages."""

from __future__ import annotations

import torch

from gnomon.engine.attention.rows import RowBatch
from gnomon.engine.cache.pools import LayerCache
from gnomon.engine.layouts.base import CacheLayout


def write(
    cache: LayerCache,
    rows: RowBatch,
    k: torch.Tensor,
    v: torch.Tensor,
    index_k: torch.Tensor | None,
    *,
    strict: bool = False,
) -> None:
    """Quantise and store every row that has a slot.

    Args:
        cache: the layer's pages, changed in place.
        rows: R rows; slot -1 writes nothing.
        k: [R, Hk, D].
        v: [R, Hk, D].
        index_k: [R, Di], or None if the layer owns no index page.
        strict: raise on NaN and Inf instead of sanitising and counting them.

    Raises:
        NonFiniteCacheInput: ``strict`` and a value is NaN or Inf.
        ValueError: an index key without an index page, or the reverse.
    """
    if (index_k is None) != (cache.index is None):
        has, given = cache.index is not None, index_k is not None
        raise ValueError(f"index keys given: {given}, but the layer owns index pages: {has}")
    slots = rows.slots
    live = slots >= 0
    if not bool(live.all()):
        keep = live.nonzero().squeeze(-1)
        slots, k, v = slots[keep], k[keep], v[keep]
        index_k = None if index_k is None else index_k[keep]
    block = slots // rows.block_size
    offset = slots - block * rows.block_size
    count = cache.sanitised
    _write_field(cache.k, cache.k_layout, block, offset, k, count, strict)
    _write_field(cache.v, cache.v_layout, block, offset, v, count, strict)
    if index_k is not None and cache.index is not None and cache.index_layout is not None:
        one_head = index_k.unsqueeze(1)
        _write_field(cache.index, cache.index_layout, block, offset, one_head, count, strict)


def _write_field(
    pool: torch.Tensor,
    layout: CacheLayout,
    block: torch.Tensor,
    offset: torch.Tensor,
    x: torch.Tensor,
    sanitised: torch.Tensor,
    strict: bool,
) -> None:
    """Store x [R, H, dim] at token ``offset`` of page (``block``, h); pool [blocks, H, bytes]."""
    heads = pool.shape[1]
    page = block.unsqueeze(1) * heads + torch.arange(heads, device=block.device)
    encoded = layout.quantise(x.flatten(0, 1), strict=strict, sanitised=sanitised)
    layout.store(pool.flatten(0, 1), page.flatten(), offset.repeat_interleave(heads), encoded)
