"""Paged attention over 4-bit pages for decode rows, in CUDA C++; see attend.cu.

Keys, queries and (but for scales 2^29 times smaller than a head's largest) values are exact in the
products' operands; the softmax's weights are rounded to fp16.
"""

from __future__ import annotations

import ctypes
import math

import torch

from gnomon.engine.attention.cuda.build import load
from gnomon.engine.attention.rows import RowBatch, Selection
from gnomon.engine.attention.triton.launch import Arithmetic
from gnomon.engine.attention.triton.sparse import merge
from gnomon.engine.cache.pools import LayerCache

_GROUP = 16  # most query heads of a KV head: the columns of a product
_PACKED = ("e8m0", "float8_e4m3fn")
_LISTED = 128  # longest list of selected pages
_EVERYTHING = 1 << 40  # a window that holds every position
#: CTAs that a multiprocessor holds at once.
_RESIDENT = 2


class _Params(ctypes.Structure):
    """AttendParams of attend.cu, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "q", "positions", "last", "request", "table", "blocks", "k", "v", "out",
            "peak", "total", "values",
        )),
        ("window", ctypes.c_int64),
        ("to_log2", ctypes.c_float),
        *((name, ctypes.c_int) for name in (
            "width", "heads", "shared", "slots", "rows", "splits",
        )),
    ]  # fmt: skip


def fits(cache: LayerCache, q: torch.Tensor, selection: Selection | None) -> bool:
    """Whether the kernel covers a layer's pages, queries q [R, Hq, D], and a selection if any."""
    k, v = cache.k_layout.geometry, cache.v_layout.geometry
    return (
        k.format == v.format
        and (k.order, v.order) == ("operand", "value")
        and (k.tokens, k.dim) == (128, 128)
        and k.regions[-1].dtype in _PACKED
        and q.dtype == torch.bfloat16
        and q.shape[1] <= _GROUP * cache.pages.kv_heads
        and (selection is None or selection.blocks.shape[2] <= _LISTED)
    )


def attend(
    cache: LayerCache,
    rows: RowBatch,
    q: torch.Tensor,
    selection: Selection | None,
    window: int | None,
    arithmetic: Arithmetic,
) -> torch.Tensor:
    """Attend q bf16 [R, Hq, 128] to selected blocks, or (no selection) to all or a window.

    Returns:
        bf16 [R, Hq, 128]; zeros for pad rows and where nothing is selected.
    """
    q = q.contiguous()
    out = torch.empty_like(q)
    count, q_heads, dim = q.shape
    if count == 0:
        return out
    heads = cache.pages.kv_heads
    blocks = None if selection is None else selection.blocks.contiguous()
    splits = max(1, _RESIDENT * arithmetic.multiprocessors // (count * heads))
    splits = min(splits, max(1, blocks.shape[2] // 2) if blocks is not None else 64)
    queries = splits * count * q_heads if splits > 1 else 0
    parts = torch.empty(queries * (dim + 2), device=q.device)
    values, peak, total = parts.split([queries * dim, queries, queries])
    pointers = (
        q, rows.positions, rows.positions if blocks is not None else rows.seen_to,
        rows.request_of_row, rows.page_table, blocks, cache.k, cache.v, out,
        peak, total, values,
    )  # fmt: skip
    params = _Params(
        *(None if t is None else t.data_ptr() for t in pointers),
        _EVERYTHING if window is None else window, dim**-0.5 * math.log2(math.e),
        rows.page_table.shape[1], heads, q_heads // heads,
        0 if blocks is None else blocks.shape[2], count, splits,
    )  # fmt: skip
    nvfp4 = cache.k_layout.geometry.regions[-1].dtype == "float8_e4m3fn"
    stream = torch.cuda.current_stream(q.device).cuda_stream
    status = load("attend").gnomon_attend(ctypes.byref(params), int(nvfp4), ctypes.c_void_p(stream))
    if status:
        raise RuntimeError(f"the attention kernel could not be launched: CUDA error {status}")
    if splits > 1:
        merge(peak, total, values, out, splits)
    return out
