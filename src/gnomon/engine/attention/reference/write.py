"""Store the keys, values and index keys of a step in their pages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from gnomon.engine.attention.checks import check_write
from gnomon.engine.attention.rows import RowBatch
from gnomon.engine.cache.pools import LayerCache
from gnomon.engine.layouts.base import CacheLayout, Encoded


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
        ValueError: an index key without an index page, or the reverse; or the rows count blocks of
            another size than the pages.
    """
    check_write(cache, rows, has_index=index_k is not None)
    slots = rows.slots
    live = slots >= 0
    if not bool(live.all()):
        keep = live.nonzero().squeeze(-1)
        slots, k, v = slots[keep], k[keep], v[keep]
        index_k = None if index_k is None else index_k[keep]
    fields = [_Field(cache.k, cache.k_layout, k), _Field(cache.v, cache.v_layout, v)]
    if index_k is not None and cache.index is not None and cache.index_layout is not None:
        fields.append(_Field(cache.index, cache.index_layout, index_k.unsqueeze(1)))
    block = slots // rows.block_size
    offset = slots - block * rows.block_size
    for alike in _by_layout(fields):
        _write_fields(alike, block, offset, cache.sanitised, strict)


@dataclass(frozen=True)
class _Field:
    """Vectors x [R, H, dim] on their way to pool [blocks, H, page bytes]."""

    pool: torch.Tensor
    layout: CacheLayout
    x: torch.Tensor


def _by_layout(fields: list[_Field]) -> Iterable[list[_Field]]:
    """Fields that share a layout are quantised in one go, which is most of a decode write."""
    groups: dict[str, list[_Field]] = {}
    for field in fields:
        groups.setdefault(field.layout.geometry.name, []).append(field)
    return groups.values()


def _write_fields(
    fields: list[_Field],
    block: torch.Tensor,
    offset: torch.Tensor,
    sanitised: torch.Tensor,
    strict: bool,
) -> None:
    """Store token ``offset`` [R] of block ``block`` [R] for fields of one layout."""
    layout = fields[0].layout
    x = torch.cat([field.x for field in fields], dim=1)
    encoded = layout.quantise(x, strict=strict, sanitised=sanitised)
    first = 0
    for field in fields:
        heads = field.pool.shape[1]
        page = block.unsqueeze(1) * heads + torch.arange(heads, device=block.device)
        regions = (r[:, first : first + heads].flatten(0, 1) for r in encoded.regions)
        where = offset.unsqueeze(1).expand(-1, heads).flatten()
        layout.store(field.pool.flatten(0, 1), page.flatten(), where, Encoded(tuple(regions)))
        first += heads
