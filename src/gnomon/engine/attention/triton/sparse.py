"""Attend rows to the blocks selected for them: split over the list, merged by log-sum-exp."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gnomon.engine.attention.rows import RowBatch, Selection
from gnomon.engine.attention.triton.attend import attend_page, merge_kernel
from gnomon.engine.attention.triton.codec import element, page_code
from gnomon.engine.attention.triton.launch import Arithmetic, power_of_2
from gnomon.engine.cache.pools import LayerCache

LOG2_E = 1.4426950408889634
#: Programs wanted on the device, per multiprocessor.
_WAVES = 4
#: Queries a merging program holds.
_MERGE_STEP = 4


@triton.jit
def _sparse_kernel(
    q_ptr, positions_ptr, request_ptr, table_ptr, blocks_ptr, k_ptr, v_ptr,
    peak_ptr, total_ptr, values_ptr, out_ptr,
    rows, table_width, block_size, slots, to_log2,
    HEADS: tl.constexpr, SHARED: tl.constexpr, QUERIES: tl.constexpr, SPLITS: tl.constexpr,
    TOKENS: tl.constexpr, DIM: tl.constexpr,
    K_ELEM: tl.constexpr, K_SCALE: tl.constexpr, K_GROUP: tl.constexpr, K_SCALE_AT: tl.constexpr,
    K_BYTES: tl.constexpr, K_ORDER: tl.constexpr,
    V_ELEM: tl.constexpr, V_SCALE: tl.constexpr, V_GROUP: tl.constexpr, V_SCALE_AT: tl.constexpr,
    V_BYTES: tl.constexpr, V_ORDER: tl.constexpr,
    PRODUCT: tl.constexpr,
):  # fmt: skip
    """The SHARED query heads of one KV head and row, over one part of the row's list."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    position = tl.load(positions_ptr + row)
    request = tl.load(request_ptr + row)
    live = (position >= 0) & (request >= 0)
    m = tl.arange(0, QUERIES)
    j = tl.arange(0, DIM // 2)[None, :]
    at = (row.to(tl.int64) * HEADS + head) * SHARED + m
    known = m < SHARED
    query = q_ptr + at[:, None] * DIM
    at_0 = query + element(j, 0, K_ELEM, DIM, K_ORDER)
    q0 = tl.load(at_0, mask=known[:, None], other=0.0).to(PRODUCT)
    at_1 = query + element(j, 1, K_ELEM, DIM, K_ORDER)
    q1 = tl.load(at_1, mask=known[:, None], other=0.0).to(PRODUCT)
    peak = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    acc0 = tl.zeros((QUERIES, DIM // 2), tl.float32)
    acc1 = tl.zeros((QUERIES, DIM // 2), tl.float32)
    per_split = tl.cdiv(slots, SPLITS)
    listed = blocks_ptr + (row.to(tl.int64) * HEADS + head) * slots
    for slot in range(split * per_split, tl.minimum((split + 1) * per_split, slots)):
        block = tl.load(listed + slot)
        stop = position + 1 - block * block_size
        if live & (block >= 0) & (block < table_width) & (stop > 0):
            page = tl.load(table_ptr + request * table_width + block)
            if page >= 0:
                page = page * HEADS + head
                last = tl.zeros((QUERIES,), tl.int32) + tl.minimum(stop, TOKENS).to(tl.int32)
                peak, total, acc0, acc1 = attend_page(
                    q0, q1, peak, total, acc0, acc1,
                    k_ptr + page * K_BYTES, v_ptr + page * V_BYTES,
                    tl.zeros((QUERIES,), tl.int32), last, to_log2, TOKENS, DIM,
                    K_ELEM, K_SCALE, K_GROUP, K_SCALE_AT, K_ORDER,
                    V_ELEM, V_SCALE, V_GROUP, V_SCALE_AT, V_ORDER, PRODUCT,
                )  # fmt: skip
    d0 = element(j, 0, V_ELEM, DIM, V_ORDER)
    d1 = element(j, 1, V_ELEM, DIM, V_ORDER)
    if SPLITS == 1:
        share = tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)[:, None]
        to = out_ptr + at[:, None] * DIM
        dtype = out_ptr.dtype.element_ty
        tl.store(to + d0, (acc0 * share).to(dtype), mask=known[:, None])
        tl.store(to + d1, (acc1 * share).to(dtype), mask=known[:, None])
    else:
        part = split.to(tl.int64) * rows * HEADS * SHARED + at
        tl.store(peak_ptr + part, peak, mask=known)
        tl.store(total_ptr + part, total, mask=known)
        tl.store(values_ptr + part[:, None] * DIM + d0, acc0, mask=known[:, None])
        tl.store(values_ptr + part[:, None] * DIM + d1, acc1, mask=known[:, None])


def sparse(
    cache: LayerCache,
    rows: RowBatch,
    q: torch.Tensor,
    selection: Selection,
    arithmetic: Arithmetic,
) -> torch.Tensor:
    """Softmax attention at scale D^-0.5 over the selected blocks, up to each row's own position.

    Args:
        cache: the layer's pages, with this step's keys and values already written.
        rows: R rows.
        q: [R, Hq, D]; query head i uses KV head and selection i // (Hq / Hk).
        selection: logical blocks per row and KV head.
        arithmetic: where the kernels run, and the dtype of their products.

    Returns:
        [R, Hq, D] in q's dtype, summed in fp32; zeros for pad rows and where nothing is selected.
    """
    count, q_heads, dim = q.shape
    heads = cache.pages.kv_heads
    slots = selection.blocks.shape[2]
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if count == 0:
        return out
    wanted = -(-arithmetic.multiprocessors * _WAVES // (count * heads))
    splits = max(1, min(wanted, slots, 16))
    parts = torch.empty((splits if splits > 1 else 0, count * q_heads, dim + 2),
                        dtype=torch.float32, device=q.device)  # fmt: skip
    flat = parts.view(-1)
    peak, total, values = flat.split([parts[..., 0].numel()] * 2 + [parts[..., 2:].numel()])
    k, v = page_code(cache.k_layout.geometry), page_code(cache.v_layout.geometry)
    _sparse_kernel[(count, heads, splits)](
        q.contiguous(), rows.positions, rows.request_of_row, rows.page_table,
        selection.blocks, cache.k, cache.v, peak, total, values, out,
        count, rows.page_table.shape[1], rows.block_size, slots, dim**-0.5 * LOG2_E,
        HEADS=heads, SHARED=q_heads // heads, QUERIES=max(16, power_of_2(q_heads // heads)),
        SPLITS=splits, TOKENS=k.tokens, DIM=dim,
        K_ELEM=k.elem, K_SCALE=k.scale, K_GROUP=k.group, K_SCALE_AT=k.scale_at,
        K_BYTES=k.page_bytes, K_ORDER=k.order,
        V_ELEM=v.elem, V_SCALE=v.scale, V_GROUP=v.group, V_SCALE_AT=v.scale_at,
        V_BYTES=v.page_bytes, V_ORDER=v.order, PRODUCT=arithmetic.product(q.dtype),
    )  # fmt: skip
    if splits > 1:
        merge(peak, total, values, out, splits)
    return out


def merge(
    peak: torch.Tensor, total: torch.Tensor, values: torch.Tensor, out: torch.Tensor, splits: int
) -> None:
    """Merge ``splits`` parts of every query into out [R, Hq, D]; see :func:`merge_kernel`."""
    count, q_heads, dim = out.shape
    queries = count * q_heads
    merge_kernel[(triton.cdiv(queries, _MERGE_STEP),)](
        peak, total, values, out, queries, SPLITS=splits, DIM=dim, STEP=_MERGE_STEP
    )
