"""Selection for decode and verify rows over 4-bit index pages, in CUDA C++; see select.cu.

The queries are e4m3, and products run on Hopper's fp8 tensor path, which keeps about 14 bits while
it adds: two pages whose scores differ by less than :data:`PRECISION` of the largest may change
places. The Triton kernel is the exact alternative, and the one for every other shape.
"""

from __future__ import annotations

import ctypes

import torch

from gnomon.engine.attention.cuda.build import load
from gnomon.engine.attention.rows import RowBatch, SelectionRule
from gnomon.engine.cache.pools import LayerCache
from gnomon.engine.layouts.geometry import PageGeometry

#: Relative error of a score, as a share of the sum of the magnitudes of its products.
PRECISION = 2.0**-13
_KEPT = 16
_MAX_TILES = 512
_MAX_QUERIES = {"e8m0": 32, "float8_e4m3fn": 16}


class _Params(ctypes.Structure):
    """Params of select.cu, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "q", "positions", "request", "table", "bounds", "pages", "parts", "starts", "out",
        )),
        *((name, ctypes.c_int) for name in (
            "width", "tiles", "heads", "init", "local", "wanted", "topk",
        )),
    ]  # fmt: skip


def ctas(device: torch.device) -> int:
    """CTAs of a launch: two a multiprocessor, each with a ring of pages of its own."""
    return 2 * min(torch.cuda.get_device_properties(device).multi_processor_count, 144)


def fits(
    geometry: PageGeometry, index_q: torch.Tensor, widest: int, tiles: int, rule: SelectionRule
) -> bool:
    """Whether the kernel covers a step.

    Args:
        geometry: the index page's.
        index_q: [R, Hi, Di].
        widest: most rows of a request in the step.
        tiles: requests with rows in the step.
        rule: the selection rule.
    """
    scale = geometry.regions[-1].dtype
    history = rule.topk_blocks - rule.init_blocks - rule.local_blocks
    return (
        geometry.order == "operand"
        and (geometry.tokens, geometry.dim) == (128, 128)
        and index_q.dtype == torch.float8_e4m3fn
        and widest * index_q.shape[1] <= _MAX_QUERIES[scale]
        and tiles <= _MAX_TILES
        and 0 < history <= _KEPT
        and rule.topk_blocks <= 32
    )


def select(
    cache: LayerCache,
    rows: RowBatch,
    index_q: torch.Tensor,
    rule: SelectionRule,
    bounds: torch.Tensor,
    widest: int,
    out: torch.Tensor,
) -> None:
    """Select blocks for every row of the tiles ``bounds``, int32 [T, 2]; see :func:`fits`.

    Args:
        cache: a layer with 4-bit index pages in operand order.
        rows: R rows.
        index_q: e4m3 [R, Hi, 128].
        rule: how many blocks, and which are forced.
        bounds: first row and number of rows of each request's tile.
        widest: most rows of a tile.
        out: int64 [R, Hi, topk], written for the rows of the tiles.
    """
    assert cache.index is not None
    assert cache.index_layout is not None
    heads = index_q.shape[1]
    geometry = cache.index_layout.geometry
    nvfp4 = geometry.regions[-1].dtype == "float8_e4m3fn"
    columns = next(n for n in (8, 16, 32) if n >= widest * heads)
    tiles = bounds.shape[0]
    device = index_q.device
    grid = ctas(device)
    parts = torch.empty((grid + tiles, columns, _KEPT), dtype=torch.int64, device=device)
    starts = torch.empty(tiles + 1, dtype=torch.int32, device=device)
    index_q = index_q.contiguous()
    pointers = (
        index_q, rows.positions, rows.request_of_row, rows.page_table, bounds, cache.index, parts,
        starts, out,
    )  # fmt: skip
    params = _Params(
        *(t.data_ptr() for t in pointers),
        rows.page_table.shape[1], tiles, heads, rule.init_blocks, rule.local_blocks,
        rule.topk_blocks - rule.init_blocks - rule.local_blocks, rule.topk_blocks,
    )  # fmt: skip
    stream = torch.cuda.current_stream(device).cuda_stream
    status = load("select").gnomon_select(
        ctypes.byref(params), widest * heads, int(nvfp4), grid, ctypes.c_void_p(stream)
    )
    if status:
        raise RuntimeError(f"the selection kernel could not be launched: CUDA error {status}")
