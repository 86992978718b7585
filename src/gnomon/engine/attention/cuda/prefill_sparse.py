"""Sparse attention for prefill rows over 4-bit pages, in CUDA C++; see prefill_sparse.cu.

Keys and values are exact in the products' bf16 operands, the softmax's weights are rounded to
bf16, what a page contributes to a query to fp16.
"""

from __future__ import annotations

import ctypes
import math

import torch

from gnomon.engine.attention.cuda.build import load
from gnomon.engine.attention.rows import RowBatch, Selection
from gnomon.engine.cache.pools import LayerCache

_GROUPS = (4, 8, 16)  # query heads of a KV head that kernels are built for
#: Bytes of what visits leave, at most: rows are done in chunks of so many.
_WORKSPACE = 576 << 20
_VISIT_BYTES = 128 * 2 + 8  # of a query head
_MAX_KEY = (1 << 31) - 1


class _Params(ctypes.Structure):
    """PrefillSparseParams of prefill_sparse.cu, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "q", "positions", "request", "table", "listed", "k", "v", "keys", "sorted", "order",
            "items", "counts", "values", "stats", "out",
        )),
        ("to_log2", ctypes.c_float),
        *((name, ctypes.c_int) for name in (
            "rows", "width", "kv_heads", "slots", "blocks", "chunk_rows",
        )),
    ]  # fmt: skip


def chunk_rows(q_heads: int, slots: int) -> int:
    """Rows whose visits fit in the workspace at once."""
    return max(64, _WORKSPACE // (q_heads * slots * _VISIT_BYTES) // 64 * 64)


def fits(cache: LayerCache, q: torch.Tensor, slots: int) -> bool:
    """Whether the kernels cover a layer and queries q [R, Hq, D] with lists of ``slots``."""
    k, v = cache.k_layout.geometry, cache.v_layout.geometry
    heads = cache.pages.kv_heads
    chunks = -(-q.shape[0] // chunk_rows(q.shape[1], slots))
    return (
        (k.order, v.order) == ("operand", "value")
        and k.format == v.format
        and (k.tokens, k.dim) == (v.tokens, v.dim) == (128, 128)
        and q.dtype == torch.bfloat16
        and q.shape[1] // heads in _GROUPS
        and slots <= 32
        and q.shape[0] * heads * slots <= _MAX_KEY
        and cache.k.shape[0] * heads * chunks < _MAX_KEY
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
    heads, device = cache.pages.kv_heads, q.device
    blocks = selection.blocks.contiguous()
    slots = blocks.shape[2]
    chunk = min(chunk_rows(q_heads, slots), -(-count // 64) * 64)
    visits = blocks.numel()
    keys = torch.empty(visits, dtype=torch.int32, device=device)
    items = torch.empty((visits, 4), dtype=torch.int32, device=device)
    counts = torch.zeros(-(-count // chunk), dtype=torch.int32, device=device)
    values = torch.empty((chunk, q_heads, slots, dim), dtype=torch.float16, device=device)
    stats = torch.empty((chunk, q_heads, slots, 2), dtype=torch.float32, device=device)

    def params(ranked: torch.Tensor, order: torch.Tensor) -> _Params:
        pointers = (
            q, rows.positions, rows.request_of_row, rows.page_table, blocks, cache.k, cache.v,
            keys, ranked, order, items, counts, values, stats, out,
        )  # fmt: skip
        return _Params(
            *(t.data_ptr() for t in pointers),
            dim**-0.5 * math.log2(math.e), count, rows.page_table.shape[1], heads, slots,
            cache.k.shape[0], chunk,
        )  # fmt: skip

    library = load("prefill_sparse")
    stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
    status = library.gnomon_prefill_keys(ctypes.byref(params(keys, keys)), stream)
    ranked, order = keys.sort(stable=True)
    nvfp4 = cache.k_layout.geometry.regions[-1].dtype == "float8_e4m3fn"
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    status = status or library.gnomon_prefill_sparse(
        ctypes.byref(params(ranked, order)), int(nvfp4), q_heads // heads, 2 * processors, stream
    )
    if status:
        raise RuntimeError(f"the prefill attention could not be launched: CUDA error {status}")
    return out
