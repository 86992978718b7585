"""Attend rows to lists of pages: what sparse and dense attention have in common.

The unit of work is a (row, KV head, slot) triple, a *visit* of one page by the query heads of one
group. Visits are sorted by page, so that a page is read and dequantised once for all the rows and
requests that need it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnomon.engine.cache.pools import LayerCache
from gnomon.engine.layouts.base import CacheLayout
from gnomon.engine.row_tiles import multiply_groups

#: Most fp32 elements of logits alive at once (64 MiB).
TILE_ELEMENTS = 1 << 24
#: Pages dequantised at once (8 MiB of fp32 at 128 x 128).
_PAGE_TILE = 128


@dataclass(frozen=True)
class Partial:
    """Softmax attention over part of the keys, ready to be merged.

    Attributes:
        peak: fp32 [R, Hk, G], largest logit, -inf if nothing was visible.
        total: fp32 [R, Hk, G], sum of exp(logit - peak).
        values: fp32 [R, Hk, G, D], sum of exp(logit - peak) * v.
    """

    peak: torch.Tensor
    total: torch.Tensor
    values: torch.Tensor

    def merge(self, other: Partial) -> Partial:
        """Attention over the keys of both."""
        peak = torch.maximum(self.peak, other.peak)
        a = _shifted_exp(self.peak, peak)
        b = _shifted_exp(other.peak, peak)
        values = self.values * a.unsqueeze(-1) + other.values * b.unsqueeze(-1)
        return Partial(peak, self.total * a + other.total * b, values)

    def output(self) -> torch.Tensor:
        """fp32 [R, Hk, G, D]; zeros where nothing was visible."""
        seen = (self.total > 0).unsqueeze(-1)
        return torch.where(seen, self.values / self.total.unsqueeze(-1), 0.0)


@dataclass(frozen=True)
class _Visits:
    """Visits sorted by page.

    Attributes:
        order: int64 [V], index into the flat [R * Hk * S] visits that are valid.
        pages: int64 [U], distinct pages, ascending (index into a pool's flat [blocks * heads]).
        bounds: visits of page u are ``bounds[u]`` to ``bounds[u + 1]``.
        page_of: int64 [V], index into ``pages``.
        first: int64 [V], first visible token of the page.
        stop: int64 [V], one past the last visible token of the page.
        page_stop: largest ``stop`` of each page's visits.
    """

    order: torch.Tensor
    pages: torch.Tensor
    bounds: list[int]
    page_of: torch.Tensor
    first: torch.Tensor
    stop: torch.Tensor
    page_stop: list[int]


def attend(
    cache: LayerCache,
    q: torch.Tensor,
    blocks: torch.Tensor,
    first: torch.Tensor,
    stop: torch.Tensor,
) -> Partial:
    """Attend every row to the visible tokens of its blocks.

    Args:
        cache: the layer's pages.
        q: fp32 [R, Hk, G, D], already scaled.
        blocks: int64 [R, Hk, S], PHYSICAL block ids; any value where nothing is visible.
        first: int64 [R, Hk, S], first visible token of the block.
        stop: int64 [R, Hk, S], one past the last visible token; not above ``first``: none.
    """
    n, heads, group, dim = q.shape
    slots = blocks.shape[2]
    visits = _sort_visits(blocks, first, stop)
    row_of = visits.order // slots  # index into the flat [R * Hk]
    queries = q.reshape(n * heads, group, dim)[row_of]
    logits = _products(cache.k, cache.k_layout, visits, queries, keys=True)
    _mask(logits, visits)

    def per_slot(x: torch.Tensor, empty: float) -> torch.Tensor:
        spread = x.new_full((n * heads * slots, *x.shape[1:]), empty)
        spread[visits.order] = x
        return spread.view(n, heads, slots, *x.shape[1:])

    peak = per_slot(logits.amax(-1), -torch.inf).amax(2)
    shift = peak.masked_fill(peak == -torch.inf, 0.0).view(n * heads, group, 1)[row_of]
    weights = logits.sub_(shift).exp_()  # exp(-inf) is 0: masked keys weigh nothing
    total = _add_slots(per_slot(weights.sum(-1), 0.0))
    values = _products(cache.v, cache.v_layout, visits, weights, keys=False)
    return Partial(peak, total, _add_slots(per_slot(values, 0.0)))


def _add_slots(x: torch.Tensor) -> torch.Tensor:
    """Sum x [R, Hk, S, ...] over its slots, first to last.

    A reduction's order may depend on the shape of the whole; empty slots then would matter.
    """
    total = x[:, :, 0]
    for slot in range(1, x.shape[2]):
        total = total + x[:, :, slot]
    return total


def _shifted_exp(x: torch.Tensor, peak: torch.Tensor) -> torch.Tensor:
    """exp(x - peak), and 0 where x is -inf, even if peak is too."""
    return torch.where(x == -torch.inf, 0.0, torch.exp(x - peak))


def _sort_visits(blocks: torch.Tensor, first: torch.Tensor, stop: torch.Tensor) -> _Visits:
    """Drop the visits that see nothing and sort the rest by page; arguments of :func:`attend`."""
    heads = blocks.shape[1]
    head = torch.arange(heads, device=blocks.device).unsqueeze(-1)
    page = (blocks * heads + head).flatten()
    first, stop = first.flatten(), stop.flatten()
    order = ((stop > first) & (blocks.flatten() >= 0)).nonzero().squeeze(-1)
    order = order[torch.argsort(page[order], stable=True)]
    pages, page_of, counts = torch.unique_consecutive(
        page[order], return_inverse=True, return_counts=True
    )
    bounds = [0, *counts.cumsum(0).tolist()]
    stop = stop[order]
    page_stop = torch.zeros_like(pages).scatter_reduce(0, page_of, stop, "amax")
    return _Visits(order, pages, bounds, page_of, first[order], stop, page_stop.tolist())


def _mask(logits: torch.Tensor, visits: _Visits) -> None:
    """Set logits [V, G, tokens] of invisible tokens to -inf, in place."""
    tokens = logits.shape[-1]
    token = torch.arange(tokens, device=logits.device)
    partial = ((visits.first > 0) | (visits.stop < tokens)).nonzero().squeeze(-1)
    first, stop = visits.first[partial].unsqueeze(-1), visits.stop[partial].unsqueeze(-1)
    hidden = ((token < first) | (token >= stop)).unsqueeze(1)
    logits[partial] = logits[partial].masked_fill(hidden, -torch.inf)


def _products(
    pool: torch.Tensor,
    layout: CacheLayout,
    visits: _Visits,
    left: torch.Tensor,
    *,
    keys: bool,
) -> torch.Tensor:
    """Multiply each visit's matrix with its page, dequantised to fp32 [tokens, D].

    Args:
        pool: uint8 [blocks, heads, page bytes].
        layout: layout of the pool.
        visits: V visits.
        left: fp32 [V, G, D] queries if ``keys``, else [V, G, tokens] weights.
        keys: multiply with the page's transpose, giving logits.

    Returns:
        fp32 [V, G, tokens] if ``keys``, else [V, G, D].
    """
    geometry = layout.geometry
    group, inner = left.shape[1:]
    width = geometry.tokens if keys else geometry.dim
    out = left.new_empty((left.shape[0], group, width))
    for u0 in range(0, len(visits.pages), _PAGE_TILE):
        u1 = min(u0 + _PAGE_TILE, len(visits.pages))
        pages = _load_visible(pool, layout, visits, u0, u1)
        pages = pages.transpose(1, 2) if keys else pages
        v0, v1 = visits.bounds[u0], visits.bounds[u1]
        bounds = [(bound - v0) * group for bound in visits.bounds[u0 : u1 + 1]]
        rows = left[v0:v1].reshape(-1, inner)
        multiply_groups(rows, bounds, pages, out[v0:v1].view(-1, width))
    return out


def _load_visible(
    pool: torch.Tensor, layout: CacheLayout, visits: _Visits, u0: int, u1: int
) -> torch.Tensor:
    """Dequantise pages ``u0`` to ``u1``: fp32 [u1 - u0, tokens, D].

    Tokens that no visit sees may be garbage, NaN included, and 0 * NaN is NaN: they read as zero.
    """
    loaded = layout.dequantise(layout.load(pool.flatten(0, 1).index_select(0, visits.pages[u0:u1])))
    tokens = layout.geometry.tokens
    for page, stop in enumerate(visits.page_stop[u0:u1]):
        if stop < tokens:
            loaded[page, stop:].zero_()
    return loaded
