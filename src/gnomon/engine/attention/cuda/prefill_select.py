"""Selection for prefill rows over 4-bit index pages, in CUDA C++; see prefill_select.cu.

e4m3 queries over MXFP4 pages use e4m3 products, on Hopper's fp8 tensor path, which keeps about 14
bits while it adds, four times one upon the other: two pages whose scores differ by less than
:data:`PRECISION` of the largest may change places. NVFP4 pages and bf16 queries use bf16 products,
which are exact; their sums are fp32.
"""

from __future__ import annotations

import ctypes

import torch

from gnomon.engine.attention.cuda.build import load
from gnomon.engine.attention.rows import RowBatch, SelectionRule
from gnomon.engine.attention.triton.plan import RowTiles
from gnomon.engine.attention.triton.select import merge
from gnomon.engine.cache.pools import LayerCache
from gnomon.engine.layouts.geometry import PageGeometry

#: Relative error of a score with e4m3 products, as a share of the sum of the magnitudes of its
#: products.
PRECISION = 2.0**-11
#: (row, head) pairs of a tile.
QUERIES = 256
#: Entries of a list of best pages.
KEPT = 16
_MAX_SPLITS = 8
#: Queries a merging program holds.
_MERGED = 8
#: Bytes of candidates that a launch may take beyond 4 KB a row.
_WORKSPACE = 2 << 20


class _Params(ctypes.Structure):
    """PrefillSelectParams of prefill_select.cu, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "q", "positions", "request", "table", "bounds", "pages", "parts",
        )),
        *((name, ctypes.c_int) for name in ("width", "heads", "init", "local", "wanted")),
    ]  # fmt: skip


def fits(geometry: PageGeometry, index_q: torch.Tensor, rule: SelectionRule) -> bool:
    """Whether the kernel covers index pages of ``geometry`` and queries index_q [R, Hi, Di]."""
    history = rule.topk_blocks - rule.init_blocks - rule.local_blocks
    return (
        geometry.order == "operand"
        and (geometry.tokens, geometry.dim) == (128, 128)
        and index_q.dtype in (torch.float8_e4m3fn, torch.bfloat16)
        and index_q.shape[1] <= QUERIES
        and rule.local_blocks > 0
        and 0 < history <= KEPT
    )


def select(
    cache: LayerCache,
    rows: RowBatch,
    index_q: torch.Tensor,
    rule: SelectionRule,
    tiles: RowTiles,
    out: torch.Tensor,
) -> None:
    """Select blocks for every row of the tiles; see :func:`fits`.

    Args:
        cache: a layer with 4-bit index pages in operand order.
        rows: R rows.
        index_q: e4m3 or bf16 [R, Hi, 128].
        rule: how many blocks, and which are forced.
        tiles: at most ``QUERIES // Hi`` rows each.
        out: int64 [R, Hi, topk], written for the rows of the tiles.
    """
    assert cache.index is not None
    assert cache.index_layout is not None
    device, heads = index_q.device, index_q.shape[1]
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    splits = splits_of(tiles.count, rows.num_rows, processors)
    candidates = torch.empty((tiles.count, splits, QUERIES, KEPT), dtype=torch.int64, device=device)
    index_q = index_q.contiguous()
    pointers = (
        index_q, rows.positions, rows.request_of_row, rows.page_table, tiles.bounds, cache.index,
        candidates,
    )  # fmt: skip
    params = _Params(
        *(t.data_ptr() for t in pointers),
        rows.page_table.shape[1], heads, rule.init_blocks, rule.local_blocks,
        rule.topk_blocks - rule.init_blocks - rule.local_blocks,
    )  # fmt: skip
    nvfp4 = cache.index_layout.geometry.regions[-1].dtype == "float8_e4m3fn"
    stream = torch.cuda.current_stream(device).cuda_stream
    status = load("prefill_select").gnomon_prefill_select(
        ctypes.byref(params), int(nvfp4), int(index_q.dtype == torch.bfloat16),
        tiles.count, splits, ctypes.c_void_p(stream),
    )  # fmt: skip
    if status:
        raise RuntimeError(f"the prefill selection could not be launched: CUDA error {status}")
    merge(candidates, rows, tiles, rule, _MERGED, out)


def splits_of(tiles: int, rows: int, processors: int) -> int:
    """Parts to cut each tile's pages into, so that the last wave of CTAs is as full as can be.

    A function of the batch's shape alone. A CTA fills a multiprocessor.
    """
    affordable = (_WORKSPACE + 4096 * rows) // (tiles * QUERIES * KEPT * 8)
    options = range(1, max(1, min(_MAX_SPLITS, affordable)) + 1)
    return min(options, key=lambda s: (-(-tiles * s // processors) / s, s))
