"""Driving the engine's model by hand: requests over shuffled pages, any split into steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from gnomon.engine.attention.reference.backend import ReferenceBackend
from gnomon.engine.attention.rows import RowBatch, Selection
from gnomon.engine.cache.pools import PagePools, build_pools
from gnomon.engine.layouts.base import CacheLayout
from gnomon.engine.layouts.geometry import LayerPages, geometry
from gnomon.engine.models.config import LayerConfig, ModelConfig
from gnomon.engine.models.minimax_m3 import MiniMaxM3
from gnomon.engine.options import CacheFormat


def pages_of(config: ModelConfig, layer: LayerConfig, fmt: CacheFormat) -> LayerPages:
    """The pages one layer owns when everything has one format."""
    kv = geometry(fmt, config.block_size, config.head_dim, "kv")
    index = geometry(fmt, config.block_size, config.index_dim, "index")
    return LayerPages(config.num_kv_heads, kv, kv, index if layer.owns_index else None)


@dataclass(frozen=True)
class CachedLayer:
    """k and v [Hk, T, D], index [1, T, Di] or None, all fp32."""

    k: torch.Tensor
    v: torch.Tensor
    index: torch.Tensor | None


@dataclass
class PagedSequence:
    """Tokens of one request, its pages in logical order, and what the model said about them."""

    ids: list[int]
    blocks: list[int]
    computed: int = 0
    logits: list[torch.Tensor] = field(default_factory=list)
    selected: list[list[torch.Tensor | None]] = field(default_factory=list)

    def all_logits(self) -> torch.Tensor:
        return torch.cat(self.logits)

    def all_blocks(self, layer: int) -> torch.Tensor:
        return torch.cat([s for step in self.selected if (s := step[layer]) is not None])


class PagedModel:
    """A model with its pools; pages are given out in a shuffled order."""

    def __init__(
        self, model: MiniMaxM3, fmt: CacheFormat, num_blocks: int = 256, seed: int = 3
    ) -> None:
        self.model = model
        layers = [pages_of(model.config, layer, fmt) for layer in model.config.layers]
        self.pools: PagePools = build_pools(layers, num_blocks, "cpu")
        generator = torch.Generator().manual_seed(seed)
        self.free = torch.randperm(num_blocks, generator=generator).tolist()
        # Whatever an earlier owner left in a page must not matter.
        for layer_cache in self.pools.layers:
            for pages in (layer_cache.k, layer_cache.v, layer_cache.index):
                if pages is not None:
                    pages.random_(0, 256, generator=generator)
        self.backend = ReferenceBackend()
        self.last_selections: tuple[Selection | None, ...] = ()

    def sequence(
        self,
        ids: Sequence[int],
        extra: int = 0,
        prefix: PagedSequence | None = None,
        shared_tokens: int = 0,
    ) -> PagedSequence:
        """A request with room for ``extra`` more tokens.

        Its first ``shared_tokens`` tokens are those of ``prefix``: whole pages are shared, and of
        a partly shared page the bytes are copied, so that it starts in the middle of a block.
        """
        size = self.model.config.block_size
        blocks = [] if prefix is None else prefix.blocks[: shared_tokens // size]
        needed = -(-(len(ids) + extra) // size)
        fresh = [self.free.pop() for _ in range(needed - len(blocks))]
        if prefix is not None and shared_tokens % size:
            self._copy_page(prefix.blocks[len(blocks)], fresh[0])
        return PagedSequence(list(ids), blocks + fresh, computed=shared_tokens)

    def _copy_page(self, source: int, target: int) -> None:
        for layer in self.pools.layers:
            for pages in (layer.k, layer.v, layer.index):
                if pages is not None:
                    pages[target] = pages[source]

    def cached(self, seq: PagedSequence, layer: int) -> CachedLayer:
        """What the pages of a sequence hold for one layer, decoded to fp32."""
        cache = self.pools.layers[layer]

        def read(pages: torch.Tensor, layout: CacheLayout) -> torch.Tensor:
            blocks = pages[torch.tensor(seq.blocks)]  # [n, heads, bytes]
            values = layout.dequantise(layout.load(blocks.flatten(0, 1)), torch.float32)
            heads = values.unflatten(0, blocks.shape[:2]).transpose(0, 1)
            return heads.flatten(1, 2)[:, : seq.computed]

        index = None
        if cache.index is not None and cache.index_layout is not None:
            index = read(cache.index, cache.index_layout)
        return CachedLayer(read(cache.k, cache.k_layout), read(cache.v, cache.v_layout), index)

    def step(self, work: Sequence[tuple[PagedSequence, int]], pads: int = 0) -> None:
        """One forward: the next n tokens of each sequence, then ``pads`` pad rows."""
        size = self.model.config.block_size
        positions, slots, owner, ids = [], [], [], []
        for i, (seq, count) in enumerate(work):
            for p in range(seq.computed, seq.computed + count):
                positions.append(p)
                slots.append(seq.blocks[p // size] * size + p % size)
                owner.append(i)
                ids.append(seq.ids[p])
        padding = [-1] * pads
        widest = max(len(seq.blocks) for seq, _ in work)
        table = [seq.blocks + [-1] * (widest - len(seq.blocks)) for seq, _ in work]
        rows = RowBatch(
            positions=torch.tensor(positions + padding),
            slots=torch.tensor(slots + padding),
            request_of_row=torch.tensor(owner + padding),
            page_table=torch.tensor(table),
            lengths=torch.tensor([seq.computed + count for seq, count in work]),
            block_size=size,
        )
        out = self.model.forward(torch.tensor(ids + padding), rows, self.pools.layers, self.backend)
        self.last_selections = out.selections
        logits = self.model.logits(out.hidden)
        start = 0
        for seq, count in work:
            part = slice(start, start + count)
            seq.logits.append(logits[part])
            seq.selected.append([s and s.blocks[part] for s in out.selections])
            seq.computed += count
            start += count

    def prefill(self, seq: PagedSequence, chunk: int | None = None) -> None:
        """Compute what is left of a sequence, in chunks."""
        while seq.computed < len(seq.ids):
            left = len(seq.ids) - seq.computed
            self.step([(seq, min(chunk or left, left))])

    def greedy(self, seq: PagedSequence, count: int) -> list[int]:
        """Append ``count`` greedy tokens, one forward each."""
        made = []
        for _ in range(count):
            token = int(seq.logits[-1][-1].argmax())
            made.append(token)
            seq.ids.append(token)
            self.step([(seq, 1)])
        return made


def same_blocks(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether two selections [T, Hi, k] keep the same set at every position and head."""
    width = max(ours.shape[-1], theirs.shape[-1])

    def as_sets(blocks: torch.Tensor) -> torch.Tensor:
        filler = blocks.new_full((*blocks.shape[:-1], width - blocks.shape[-1]), -1)
        return torch.cat([blocks, filler], dim=-1).sort(-1).values

    return torch.equal(as_sets(ours), as_sets(theirs))
