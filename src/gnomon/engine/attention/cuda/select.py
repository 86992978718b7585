"""Selection for decode and verify rows over 4-bit index pages, in CUDA C++; see select.cu.

e4m3 queries use e4m3 products, on Hopper's fp8 tensor path, which keeps about 14 bits while it
adds: two pages whose scores differ by less than :data:`PRECISION` of the largest may change places.
bf16 and fp16 queries use bf16 products, which are exact; their sums are fp32.
"""

from __future__ import annotations

import ctypes
import functools

import torch

from gnomon.engine.attention.cuda.build import load
from gnomon.engine.attention.rows import RowBatch, SelectionRule
from gnomon.engine.cache.pools import LayerCache
from gnomon.engine.layouts.geometry import PageGeometry

#: Relative error of a score with e4m3 products, as a share of the sum of the magnitudes of its
#: products.
PRECISION = 2.0**-13
#: Largest (row, head) pairs a request.
MAX_QUERIES = 32
_KEPT = 16
#: Requests of a launch; a step of more takes several.
_MAX_TILES = 512
_MAX_CTAS = 160
#: bf16 numbers that add up to an element of a query; 0 stands for e4m3 products.
_TERMS = {torch.float8_e4m3fn: 0, torch.bfloat16: 1, torch.float16: 2}


class _Params(ctypes.Structure):
    """Params of select.cu, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "q", "positions", "request", "table", "bounds", "pages", "parts", "arrived", "out",
        )),
        *((name, ctypes.c_int) for name in (
            "width", "tiles", "heads", "init", "local", "wanted", "topk",
        )),
    ]  # fmt: skip


def ctas(device: torch.device) -> int:
    """CTAs of a launch: one a multiprocessor."""
    return min(torch.cuda.get_device_properties(device).multi_processor_count, _MAX_CTAS)


@functools.cache
def counters(device: torch.device) -> torch.Tensor:
    """How many CTAs have written a list of each query: zeros, and every launch leaves them so.

    The selections of a device share them: they have to be ordered, as the kernels of one stream
    are. Asked for first outside of a graph's capture.
    """
    return torch.zeros(_MAX_TILES * MAX_QUERIES, dtype=torch.int32, device=device)


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
    history = rule.topk_blocks - rule.init_blocks - rule.local_blocks
    return (
        geometry.order == "operand"
        and (geometry.tokens, geometry.dim) == (128, 128)
        and index_q.dtype in _TERMS
        and tiles > 0
        and widest * index_q.shape[1] <= MAX_QUERIES
        and rule.local_blocks > 0
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
        index_q: e4m3, bf16 or fp16 [R, Hi, 128].
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
    device = index_q.device
    grid = ctas(device)
    index_q = index_q.contiguous()
    stream = torch.cuda.current_stream(device).cuda_stream
    for some in bounds.split(_MAX_TILES):
        tiles = some.shape[0]
        parts = torch.empty((grid + tiles, columns, _KEPT), dtype=torch.int64, device=device)
        pointers = (
            index_q, rows.positions, rows.request_of_row, rows.page_table, some, cache.index,
            parts, counters(device), out,
        )  # fmt: skip
        params = _Params(
            *(t.data_ptr() for t in pointers),
            rows.page_table.shape[1], tiles, heads, rule.init_blocks, rule.local_blocks,
            rule.topk_blocks - rule.init_blocks - rule.local_blocks, rule.topk_blocks,
        )  # fmt: skip
        status = load("select").gnomon_select(
            ctypes.byref(params), widest * heads, int(nvfp4), _TERMS[index_q.dtype], grid,
            ctypes.c_void_p(stream),
        )  # fmt: skip
        if status:
            raise RuntimeError(f"the selection kernel could not be launched: CUDA error {status}")
