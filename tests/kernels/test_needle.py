"""Keys planted in a context of 1,048,576 tokens are found whatever the layout."""

from __future__ import annotations

import pytest
import torch

from gnomon.engine.attention.rows import RowBatch, SelectionRule
from gnomon.engine.cache.pools import LayerCache, build_pools
from gnomon.engine.layouts.geometry import LayerPages, geometry
from gnomon.engine.options import CacheFormat

pytestmark = pytest.mark.gpu

CONTEXT, BLOCK, DIM, HEADS = 1 << 20, 128, 128, 4
PAGES = CONTEXT // BLOCK


@pytest.fixture(scope="module")
def hopper():
    from gnomon.engine.attention.triton.backend import TritonBackend

    return TritonBackend(kernels="hopper")


def haystack(q: torch.Tensor, strength: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal keys [CONTEXT, DIM], with five in pages of their own for each of q's [HEADS, DIM].

    The score of the k-th needle of a head is ``strength + k`` standard deviations of a random
    key's; the best of a million random keys lies near five.

    Returns:
        Keys, and the planted pages [HEADS, 5].
    """
    keys = torch.randn(CONTEXT, DIM, device="cuda")
    pages = torch.randperm(PAGES - 1, device="cuda")[: HEADS * 5].view(HEADS, 5)
    for h in range(HEADS):
        for k in range(5):
            token = pages[h, k] * BLOCK + 7 + 20 * k
            along = q[h] / q[h].norm()
            keys[token] += (strength + k - keys[token] @ along) * along
    return keys, pages


def cached(fmt: CacheFormat, keys: torch.Tensor) -> LayerCache:
    small = geometry(CacheFormat.FP8, 1, 4, "kv")
    page = geometry(fmt, BLOCK, DIM, "index")
    cache = build_pools([LayerPages(HEADS, small, small, page)], PAGES, "cuda").layers[0]
    assert cache.index is not None
    assert cache.index_layout is not None
    token = torch.arange(CONTEXT, device="cuda")
    for part in token.split(1 << 17):
        encoded = cache.index_layout.quantise(keys[part])
        cache.index_layout.store(cache.index[:, 0], part // BLOCK, part % BLOCK, encoded)
    return cache


def recall(hopper, fmt: CacheFormat, strength: float) -> float:
    """Share of the planted pages that are selected."""
    found = 0.0
    for seed in range(4):
        torch.manual_seed(seed)
        q = torch.randn(1, HEADS, DIM, device="cuda").to(torch.float8_e4m3fn)
        keys, planted = haystack(q[0].float(), strength)
        order = torch.randperm(PAGES, device="cuda")
        shuffled = keys.view(PAGES, BLOCK, DIM)[order.argsort()].flatten(0, 1)
        cache = cached(fmt, shuffled)
        last = torch.tensor([CONTEXT - 1], device="cuda")
        zero = torch.zeros(1, dtype=torch.int64, device="cuda")
        rows = RowBatch(last, last, zero, order[None].contiguous(), last + 1, BLOCK)
        query = q if fmt in (CacheFormat.MXFP4, CacheFormat.NVFP4) else q.bfloat16()
        chosen = hopper.select(cache, rows, query, SelectionRule(16)).blocks[0]
        found += sum(float(torch.isin(planted[h], chosen[h]).sum()) for h in range(HEADS))
    return found / (4 * HEADS * 5)


@pytest.mark.parametrize(
    "fmt", [CacheFormat.BF16, CacheFormat.FP8, CacheFormat.MXFP4, CacheFormat.NVFP4]
)
def test_planted_keys_are_found_in_a_million(hopper, fmt):
    for strength in (4.0, 5.0, 7.0):
        print(f"needle recall {fmt.value} at {strength:.0f} to {strength + 4:.0f} deviations: "
              f"{recall(hopper, fmt, strength):.3f}")  # fmt: skip
    assert recall(hopper, fmt, 7.0) == 1.0
