"""Random 4-bit index pages on a GPU, and what a selection of them is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gnomon.engine.attention.rows import RowBatch
from gnomon.engine.cache.pools import LayerCache, build_pools
from gnomon.engine.layouts.geometry import LayerPages, geometry
from gnomon.engine.options import CacheFormat

BLOCK = 128
SCALES = {CacheFormat.MXFP4: (118, 132), CacheFormat.NVFP4: (0x20, 0x50)}


@dataclass(frozen=True)
class Index:
    """Index pages of some requests, at random places of a pool."""

    cache: LayerCache
    page_table: torch.Tensor
    lengths: tuple[int, ...]

    def scales(self) -> torch.Tensor:
        """Scale bytes of every page, uint8 [blocks, bytes]; writing to it writes to the cache."""
        assert self.cache.index is not None
        assert self.cache.index_layout is not None
        return self.cache.index[:, 0, self.cache.index_layout.geometry.region("scale").offset :]

    def rows(self, per_request: int | Sequence[int], before: int = 0, pads: int = 0) -> RowBatch:
        """The last rows of each request, ``before`` tokens from its end; pads between requests."""
        each = [per_request] * len(self.lengths) if isinstance(per_request, int) else per_request
        positions, requests = [], []
        for i, (length, n) in enumerate(zip(self.lengths, each, strict=True)):
            span = range(max(0, length - before - n), length - before)
            positions += [-1] * pads + list(span)
            requests += [-1] * pads + [i] * len(span)
        return RowBatch(
            torch.tensor(positions, device="cuda"),
            torch.full((len(positions),), -1, device="cuda"),
            torch.tensor(requests, device="cuda"),
            self.page_table,
            torch.tensor(self.lengths, device="cuda"),
            BLOCK,
        )


def index_pages(
    fmt: CacheFormat, lengths: Sequence[int], heads: int = 1, *, distinct: int | None = None
) -> Index:
    """Fill pages with random bytes.

    ``distinct``: only so many different pages, for ties, and all scales 1, so that products with
    small whole numbers are exact in any order and precision.
    """
    count = [-(-n // BLOCK) for n in lengths]
    blocks = sum(count) + 3
    kv = geometry(CacheFormat.FP8, 1, 4, "kv")  # keys and values play no part
    page = geometry(fmt, BLOCK, 128, "index")
    cache = build_pools([LayerPages(heads, kv, kv, page)], blocks, "cuda").layers[0]
    assert cache.index is not None
    flat = cache.index[:, 0]
    flat.copy_(torch.randint(0, 256, flat.shape, device="cuda", dtype=torch.uint8))
    if fmt in SCALES:
        scale = page.region("scale")
        part = flat[:, scale.offset :]
        part.copy_(torch.randint(*SCALES[fmt], part.shape, device="cuda", dtype=torch.uint8))
    if distinct is not None:
        flat[:, page.region("scale").offset :] = 127 if fmt is CacheFormat.MXFP4 else 0x38
        flat.copy_(flat[torch.randint(0, distinct, (blocks,), device="cuda")])
    table = torch.full((len(lengths), max(count) + 2), -1, dtype=torch.int64, device="cuda")
    for i, own in enumerate(torch.randperm(blocks, device="cuda")[: sum(count)].split(count)):
        table[i, : count[i]] = own
    return Index(cache, table, tuple(lengths))


def queries(rows: RowBatch, heads: int, dtype: torch.dtype = torch.float8_e4m3fn) -> torch.Tensor:
    """Random index queries [R, heads, 128]."""
    return torch.randn(rows.num_rows, heads, 128, device="cuda").to(dtype)


def worst_loss(index: Index, rows: RowBatch, q: torch.Tensor, mine: torch.Tensor,
               theirs: torch.Tensor) -> tuple[int, float]:  # fmt: skip
    """How many lists differ, and by how much their scores do.

    Returns:
        Lists that differ, and the largest difference between the scores of corresponding entries,
        relative to the largest sum of magnitudes of any product of the row.
    """
    assert index.cache.index is not None
    assert index.cache.index_layout is not None
    layout = index.cache.index_layout
    differ = (mine != theirs).any(-1).nonzero().tolist()
    worst = 0.0
    for row, head in differ[:200]:
        request = int(rows.request_of_row[row])
        assert (mine[row, head] >= 0).equal(theirs[row, head] >= 0)
        chosen = torch.stack((mine[row, head], theirs[row, head]))
        pages = index.page_table[request, chosen.clamp(min=0)]
        keys = layout.dequantise(layout.load(index.cache.index[:, 0][pages.flatten()])).double()
        products = keys * q[row, head].double()
        scores = products.sum(-1).amax(-1).view_as(chosen)
        size = products.abs().sum(-1).amax()
        gap = (scores[0] - scores[1]).abs()[mine[row, head] >= 0].amax()
        worst = max(worst, float(gap / size))
    return len(differ), worst
