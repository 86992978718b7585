"""Sparse decode attention over 4-bit pages, in CUDA C++; see sparse.cu.

Keys and values are exact in the products' bf16 operands, the softmax's weights are rounded to bf16.
"""

from __future__ import annotations

import ctypes
import math

import torch

from gnomon.engine.attention.cuda.build import load
from gnomon.engine.attention.rows import RowBatch, Selection
from gnomon.engine.cache.pools import LayerCache

_GROUP = 16  # most query heads of a KV head: the rows of one product
_PACKED = ("e8m0", "float8_e4m3fn")


class _Params(ctypes.Structure):
    """SparseParams of sparse.cu, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "q", "positions", "request", "table", "blocks", "k", "v", "out",
        )),
        ("to_log2", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("width", "kv_heads", "shared", "slots")),
    ]  # fmt: skip


def fits(cache: LayerCache, q: torch.Tensor) -> bool:
    """Whether the kernel covers a layer's pages and queries q [R, Hq, D]."""
    k, v = cache.k_layout.geometry, cache.v_layout.geometry
    return (
        k.name == v.name
        and k.order == "row_major"
        and (k.tokens, k.dim) == (128, 128)
        and k.regions[0].dtype == "e2m1x2"
        and k.regions[-1].dtype in _PACKED
        and q.dtype == torch.bfloat16
        and q.shape[1] <= _GROUP * cache.pages.kv_heads
    )


def sparse(
    cache: LayerCache, rows: RowBatch, q: torch.Tensor, selection: Selection
) -> torch.Tensor:
    """Attend q bf16 [R, Hq, 128] to the selected blocks; see :func:`fits`.

    Returns:
        bf16 [R, Hq, 128]; zeros for pad rows and where nothing is selected.
    """
    q = q.contiguous()
    out = torch.empty_like(q)
    count, q_heads, dim = q.shape
    if count == 0:
        return out
    heads = cache.pages.kv_heads
    blocks = selection.blocks.contiguous()
    pointers = (
        q, rows.positions, rows.request_of_row, rows.page_table, blocks, cache.k, cache.v, out,
    )  # fmt: skip
    params = _Params(
        *(t.data_ptr() for t in pointers),
        dim**-0.5 * math.log2(math.e), rows.page_table.shape[1], heads, q_heads // heads,
        blocks.shape[2],
    )  # fmt: skip
    nvfp4 = cache.k_layout.geometry.regions[-1].dtype == "float8_e4m3fn"
    stream = torch.cuda.current_stream(q.device).cuda_stream
    status = load("sparse").gnomon_sparse(
        ctypes.byref(params), int(nvfp4), count, ctypes.c_void_p(stream)
    )
    if status:
        raise RuntimeError(f"the sparse kernel could not be launched: CUDA error {status}")
    return out
