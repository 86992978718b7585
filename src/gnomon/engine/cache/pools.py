"""Page pools: the memory behind the blocks, one buffer per field and layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gnomon.engine.layouts.base import CacheLayout
from gnomon.engine.layouts.geometry import LayerPages
from gnomon.engine.layouts.registry import layout_for


@dataclass(frozen=True)
class LayerCache:
    """Pages of one layer. A token's K, V and index key share block id and offset.

    Attributes:
        pages: geometry of the fields.
        k: uint8 [blocks, kv_heads, page bytes].
        v: uint8 [blocks, kv_heads, page bytes].
        index: uint8 [blocks, 1, page bytes], or None if the layer owns no index page.
        k_layout: layout of ``k``.
        v_layout: layout of ``v``.
        index_layout: layout of ``index``, or None.
        sanitised: int64 [], non-finite values replaced on the way in, increased in place.
    """

    pages: LayerPages
    k: torch.Tensor
    v: torch.Tensor
    index: torch.Tensor | None
    k_layout: CacheLayout
    v_layout: CacheLayout
    index_layout: CacheLayout | None
    sanitised: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of all fields."""
        index = self.index.nbytes if self.index is not None else 0
        return self.k.nbytes + self.v.nbytes + index


@dataclass(frozen=True)
class PagePools:
    """Every layer's pages; block b of each layer together is block b of the scheduler.

    Attributes:
        layers: one entry per attention layer, in layer order.
        num_blocks: blocks in every buffer.
        arenas: the memory of the fields: uint8 [fields, blocks, bytes], one for all fields whose
            blocks have equally many bytes, in the order of the layers. A whole block is the same
            place of every arena, so it can be moved in few steps.
    """

    layers: tuple[LayerCache, ...]
    num_blocks: int
    arenas: tuple[torch.Tensor, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return sum(layer.pages.block_bytes for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers; ``num_blocks * block_bytes``."""
        return sum(layer.nbytes for layer in self.layers)

    def sanitised_total(self) -> int:
        """Non-finite values replaced since the pools were built, over all layers."""
        return sum(int(layer.sanitised) for layer in self.layers)


def build_pools(
    layers: Sequence[LayerPages], num_blocks: int, device: torch.device | str = "cpu"
) -> PagePools:
    """Allocate ``num_blocks`` blocks for every layer.

    The buffers start as zeros, which every layout decodes to finite values; nothing relies on it.
    """
    counts = Counter(size for pages in layers for size in _field_bytes(pages))
    arenas = {
        size: torch.zeros((count, num_blocks, size), dtype=torch.uint8, device=device)
        for size, count in counts.items()
    }
    fields = {size: iter(arena.unbind()) for size, arena in arenas.items()}

    def field(heads: int, page_bytes: int) -> torch.Tensor:
        return next(fields[heads * page_bytes]).view(num_blocks, heads, page_bytes)

    caches = tuple(
        LayerCache(
            pages=pages,
            k=field(pages.kv_heads, pages.k.page_bytes),
            v=field(pages.kv_heads, pages.v.page_bytes),
            index=None if pages.index is None else field(1, pages.index.page_bytes),
            k_layout=layout_for(pages.k),
            v_layout=layout_for(pages.v),
            index_layout=None if pages.index is None else layout_for(pages.index),
            sanitised=torch.zeros((), dtype=torch.int64, device=device),
        )
        for pages in layers
    )
    return PagePools(caches, num_blocks, tuple(arenas.values()))


def _field_bytes(pages: LayerPages) -> Iterator[int]:
    """Bytes of a block in each field of a layer."""
    yield pages.kv_heads * pages.k.page_bytes
    yield pages.kv_heads * pages.v.page_bytes
    if pages.index is not None:
        yield pages.index.page_bytes
