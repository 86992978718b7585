"""A small world to attend in: pages at random places, every unwritten byte poisoned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch

from gnomon.engine.attention.backend import AttentionBackend
from gnomon.engine.attention.rows import RowBatch, Selection, SelectionRule
from gnomon.engine.cache.pools import LayerCache, build_pools
from gnomon.engine.layouts.base import CacheLayout
from gnomon.engine.layouts.geometry import LayerPages, geometry
from gnomon.engine.options import CacheFormat

from .naive import History, attend_row, select_row, sparse_tokens

POISON = 0xFF  # NaN as bf16, fp32, e4m3 and e8m0


@dataclass(frozen=True)
class Shape:
    """Sizes of a layer; the group size is 32 so that every format fits."""

    block: int = 16
    kv_heads: int = 2
    group: int = 2
    dim: int = 32
    blocks: int = 64


@dataclass(frozen=True)
class Chunk:
    """Rows of one request in a step: positions ``start`` to ``start + rows``."""

    start: int
    rows: int


class World:
    """One layer's pages and some requests whose tokens live in them."""

    def __init__(
        self,
        fmt: CacheFormat,
        lengths: Sequence[int],
        shape: Shape | None = None,
        *,
        index_fmt: CacheFormat | None = None,
        seed: int = 0,
        poison: int = POISON,
        shuffle: bool = True,
        whole: bool = False,
    ) -> None:
        """Make tokens for requests of the given lengths.

        ``whole`` draws integers, whose dot products are exact in any order of summation.
        """
        self.shape = shape = shape or Shape()
        self.random = torch.Generator().manual_seed(seed)
        self.whole = whole
        key = geometry(fmt, shape.block, shape.dim, "key")
        value = geometry(fmt, shape.block, shape.dim, "value")
        index = geometry(index_fmt or fmt, shape.block, shape.dim, "index")
        pages = LayerPages(shape.kv_heads, key, value, index)
        self.cache: LayerCache = build_pools([pages], shape.blocks).layers[0]
        for field in (self.cache.k, self.cache.v, self.cache.index):
            assert field is not None
            field.fill_(poison)
        self.lengths = list(lengths)
        self.tokens = [
            History(
                self.draw(n, shape.kv_heads, shape.dim),
                self.draw(n, shape.kv_heads, shape.dim),
                self.draw(n, shape.dim),
            )
            for n in lengths
        ]
        count = [-(-n // shape.block) for n in lengths]
        order = torch.arange(shape.blocks)
        if shuffle:
            order = torch.randperm(shape.blocks, generator=self.random)
        self.page_table = torch.full((len(lengths), max(count)), -1, dtype=torch.int64)
        for i, pages_of_request in enumerate(order[: sum(count)].split(count)):
            self.page_table[i, : count[i]] = pages_of_request

    def draw(self, *shape: int) -> torch.Tensor:
        if self.whole:
            return torch.randint(-2, 3, shape, generator=self.random).float()
        return torch.randn(*shape, generator=self.random)

    def batch(self, chunks: Sequence[Chunk | None], pads: int = 0) -> RowBatch:
        """Rows of a step, one chunk (or None) per request; a pad row before each chunk if asked."""
        positions, requests = [], []
        lengths = []
        for i, chunk in enumerate(chunks):
            span = range(0) if chunk is None else range(chunk.start, chunk.start + chunk.rows)
            positions += [-1] * pads + list(span)
            requests += [-1] * pads + [i] * len(span)
            lengths.append(0 if chunk is None else span.stop)
        position, request = torch.tensor(positions), torch.tensor(requests)
        block, offset = position // self.shape.block, position % self.shape.block
        slots = self.page_table[request, block] * self.shape.block + offset
        return RowBatch(
            positions=position,
            slots=torch.where(position < 0, -1, slots),
            request_of_row=request,
            page_table=self.page_table,
            lengths=torch.tensor(lengths),
            block_size=self.shape.block,
        )

    def gather(self, rows: RowBatch, field: str) -> torch.Tensor:
        """The requests' vectors of each row; garbage for pad rows."""
        dims = getattr(self.tokens[0], field).shape[1:]
        out = torch.full((rows.num_rows, *dims), float("nan"))
        for r, (i, p) in enumerate(requests_and_positions(rows)):
            if p >= 0:
                out[r] = getattr(self.tokens[i], field)[p]
        return out

    def write(self, backend: AttentionBackend, rows: RowBatch) -> None:
        k, v, index_k = (self.gather(rows, name) for name in ("k", "v", "index_k"))
        backend.write(self.cache, rows, k, v, index_k)

    def write_all(self, backend: AttentionBackend) -> None:
        """Write every token of every request."""
        self.write(backend, self.batch([Chunk(0, n) for n in self.lengths]))

    def queries(self, rows: RowBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """index_q [R, Hi, Di] and q [R, Hq, D], a function of request and position alone."""
        s = self.shape
        heads = s.kv_heads * (s.group + 1)
        out = torch.zeros(rows.num_rows, heads, s.dim)
        for r, (i, p) in enumerate(requests_and_positions(rows)):
            g = torch.Generator().manual_seed(100_003 * (i + 2) + p)
            out[r] = (
                torch.randint(-2, 3, (heads, s.dim), generator=g).float()
                if self.whole
                else torch.randn(heads, s.dim, generator=g)
            )
        return out[:, : s.kv_heads], out[:, s.kv_heads :]

    def cached(self, request: int) -> History:
        """What the cache holds of a request: its tokens, through the layouts."""

        def through(layout: CacheLayout | None, x: torch.Tensor) -> torch.Tensor:
            assert layout is not None
            return layout.dequantise(layout.quantise(x))

        t, c = self.tokens[request], self.cache
        return History(
            through(c.k_layout, t.k), through(c.v_layout, t.v), through(c.index_layout, t.index_k)
        )

    def expect(
        self, rows: RowBatch, rule: SelectionRule, window: int | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Selection, sparse and dense output by the loops of naive.py."""
        s = self.shape
        index_q, q = self.queries(rows)
        blocks = torch.full((rows.num_rows, s.kv_heads, rule.topk_blocks), -1)
        sparse, dense = torch.zeros_like(q), torch.zeros_like(q)
        histories = [self.cached(i) for i in range(len(self.lengths))]
        for r, (i, p) in enumerate(requests_and_positions(rows)):
            if p < 0:
                continue
            h = histories[i]
            oldest = 0 if window is None else max(0, p + 1 - window)
            past = list(range(oldest, int(rows.seen_to[r]) + 1))
            for head in range(s.kv_heads):
                chosen = select_row(index_q[r, head], h.index_k, p, s.block, rule)
                blocks[r, head, : len(chosen)] = torch.tensor(chosen)
                seen = sparse_tokens(chosen, p, s.block)
                for j in range(head * s.group, (head + 1) * s.group):
                    sparse[r, j] = attend_row(q[r, j], h.k[:, head], h.v[:, head], seen)
                    dense[r, j] = attend_row(q[r, j], h.k[:, head], h.v[:, head], past)
        return blocks, sparse, dense


def requests_and_positions(rows: RowBatch) -> list[tuple[int, int]]:
    return list(zip(rows.request_of_row.tolist(), rows.positions.tolist(), strict=True))


@dataclass(frozen=True)
class Seen:
    """What a backend made of a batch."""

    blocks: torch.Tensor
    sparse: torch.Tensor
    dense: torch.Tensor

    def rows(self, index: torch.Tensor) -> Seen:
        return replace(
            self, blocks=self.blocks[index], sparse=self.sparse[index], dense=self.dense[index]
        )


def observe(
    backend: AttentionBackend,
    world: World,
    rows: RowBatch,
    rule: SelectionRule,
    window: int | None = None,
) -> Seen:
    """Select and attend, both ways."""
    index_q, q = world.queries(rows)
    selection: Selection = backend.select(world.cache, rows, index_q, rule)
    return Seen(
        selection.blocks,
        backend.sparse(world.cache, rows, q, selection),
        backend.dense(world.cache, rows, q, window),
    )


def assert_same(a: Seen, b: Seen) -> None:
    assert torch.equal(a.blocks, b.blocks)
    torch.testing.assert_close(a.sparse, b.sparse, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(a.dense, b.dense, atol=2e-6, rtol=1e-5)


class OnGpu:
    """A backend whose tensors live on a GPU, used from tests whose tensors do not."""

    def __init__(self, backend: AttentionBackend) -> None:
        self.backend = backend
        self.name = backend.name

    def project(self, cache, rows, projected, norms, turn, index_dtype=None):
        there = to_gpu(cache)
        made = self.backend.project(
            there, to_gpu(rows), projected.cuda(), to_gpu(norms), to_gpu(turn), index_dtype
        )
        self._copy_back(cache, there)
        return to_cpu(made)

    def write(self, cache, rows, k, v, index_k):
        there = to_gpu(cache)
        vectors = (None if x is None else x.cuda() for x in (k, v, index_k))
        self.backend.write(there, to_gpu(rows), *vectors)
        self._copy_back(cache, there)

    def _copy_back(self, cache, there):
        for field in ("k", "v", "index", "sanitised"):
            if getattr(cache, field) is not None:
                getattr(cache, field).copy_(getattr(there, field))

    def select(self, cache, rows, index_q, rule):
        chosen = self.backend.select(to_gpu(cache), to_gpu(rows), index_q.cuda(), rule)
        return Selection(chosen.blocks.cpu())

    def sparse(self, cache, rows, q, selection):
        there = Selection(selection.blocks.cuda())
        return self.backend.sparse(to_gpu(cache), to_gpu(rows), q.cuda(), there).cpu()

    def dense(self, cache, rows, q, window=None):
        return self.backend.dense(to_gpu(cache), to_gpu(rows), q.cuda(), window).cpu()


def to_gpu(x):
    """A copy of a dataclass with its tensors on the GPU."""
    return moved(x, "cuda")


def to_cpu(x):
    return moved(x, "cpu")


def moved(x, device: str):
    """A copy of a dataclass with its tensors on ``device``."""
    tensors = {f.name: getattr(x, f.name) for f in fields(x)}
    there = {n: t.to(device) for n, t in tensors.items() if isinstance(t, torch.Tensor)}
    return replace(x, **there)
