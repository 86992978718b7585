"""Random caches of any format and size, filled on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnomon.engine.attention.rows import RowBatch
from gnomon.engine.cache.pools import LayerCache, build_pools
from gnomon.engine.layouts.base import CacheLayout
from gnomon.engine.layouts.geometry import LayerPages, geometry
from gnomon.engine.options import CacheFormat

BLOCK = 128
DIM = 128


@dataclass(frozen=True)
class Work:
    """A cache and one step's rows: ``requests`` of ``context`` tokens, ``rows`` each at the end."""

    cache: LayerCache
    rows: RowBatch

    @property
    def pages(self) -> int:
        """Pages of a request."""
        return int((self.rows.page_table[0] >= 0).sum())


def _fill(pool: torch.Tensor, layout: CacheLayout) -> None:
    """Random pages: random codes with scales of order one, or normal numbers."""
    flat = pool.flatten(0, 1)
    page = layout.geometry
    data, last = page.region("data"), page.regions[-1]
    if data.dtype in ("bfloat16", "float32"):
        dtype = getattr(torch, data.dtype)
        flat.view(dtype).normal_()
        return
    for part in flat.split(1 << 16):
        part.view(torch.int32).random_()
        if data.dtype == "float8_e4m3fn":
            part.bitwise_and_(0xBF)  # magnitudes below 2, no NaN
    if last.name == "scale":
        scale = flat[:, last.offset :]
        if last.dtype == "float32":
            scale.copy_(torch.ones(BLOCK, device=pool.device).view(torch.uint8))
        else:
            low, high = (121, 127) if last.dtype == "e8m0" else (0x20, 0x40)
            for part in scale.split(1 << 16):
                part.copy_(torch.randint(low, high, part.shape, device=pool.device))


def build(
    fmt: CacheFormat, requests: int, context: int, rows: int, heads: int, *, kv: bool,
    index: bool | None = None, width: int | None = None,
) -> Work:  # fmt: skip
    """Make pages for index keys alone, or (``kv``) for keys and values alone; ``index``: both.

    ``width`` is the page table's, by default what the context needs.
    """
    index = not kv if index is None else index
    count = -(-context // BLOCK)
    blocks = requests * count
    small = geometry(CacheFormat.FP8, 1, 4, "kv")
    key, value = geometry(fmt, BLOCK, DIM, "key"), geometry(fmt, BLOCK, DIM, "value")
    if not kv:
        key = value = small
    pages = LayerPages(heads, key, value, geometry(fmt, BLOCK, DIM, "index") if index else None)
    cache = build_pools([pages], blocks, "cuda").layers[0]
    if kv:
        _fill(cache.k, cache.k_layout)
        _fill(cache.v, cache.v_layout)
    if cache.index is not None and cache.index_layout is not None:
        _fill(cache.index, cache.index_layout)
    table = torch.full((requests, max(width or 0, count)), -1, dtype=torch.int64, device="cuda")
    table[:, :count] = torch.randperm(blocks, device="cuda").view(requests, count)
    position = torch.arange(context - rows, context, device="cuda").repeat(requests)
    request = torch.arange(requests, device="cuda").repeat_interleave(rows)
    slots = table[request, position // BLOCK] * BLOCK + position % BLOCK
    lengths = torch.full((requests,), context, device="cuda")
    return Work(cache, RowBatch(position, slots, request, table, lengths, BLOCK))
