"""Attend rows to every page of their request, or to a window at its end."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gnomon.engine.attention.rows import RowBatch
from gnomon.engine.attention.triton.attend import attend_page
from gnomon.engine.attention.triton.codec import element, page_code
from gnomon.engine.attention.triton.launch import Arithmetic, power_of_2
from gnomon.engine.attention.triton.plan import Plans
from gnomon.engine.attention.triton.sparse import LOG2_E, merge
from gnomon.engine.cache.pools import LayerCache

#: (row, query head) pairs of one KV head that a program aims to hold.
_QUERIES = 64
_WAVES = 4


@triton.jit
def _dense_kernel(
    q_ptr, positions_ptr, seen_to_ptr, request_ptr, table_ptr, bounds_ptr, k_ptr, v_ptr,
    peak_ptr, total_ptr, values_ptr,
    rows, table_width, block_size, window, to_log2,
    HEADS: tl.constexpr, SHARED: tl.constexpr, QUERIES: tl.constexpr, SPLITS: tl.constexpr,
    TOKENS: tl.constexpr, DIM: tl.constexpr,
    K_ELEM: tl.constexpr, K_SCALE: tl.constexpr, K_GROUP: tl.constexpr, K_SCALE_AT: tl.constexpr,
    K_BYTES: tl.constexpr, K_ORDER: tl.constexpr,
    V_ELEM: tl.constexpr, V_SCALE: tl.constexpr, V_GROUP: tl.constexpr, V_SCALE_AT: tl.constexpr,
    V_BYTES: tl.constexpr, V_ORDER: tl.constexpr,
    PRODUCT: tl.constexpr,
):  # fmt: skip
    """The rows of one tile and the query heads of one KV head, over one part of the pages.

    Query m of a tile is row ``m // SHARED``, query head ``m % SHARED`` of the KV head.
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    first = tl.load(bounds_ptr + 2 * tile)
    count = tl.load(bounds_ptr + 2 * tile + 1)
    m = tl.arange(0, QUERIES)
    j = tl.arange(0, DIM // 2)[None, :]
    row = first + m // SHARED
    known = m < count * SHARED
    position = tl.load(positions_ptr + row, mask=known, other=-1)
    of_row = tl.load(request_ptr + row, mask=known, other=-1)
    position = tl.where(of_row >= 0, position, -1)
    newest = tl.load(seen_to_ptr + row, mask=known, other=-1)
    newest = tl.where(position >= 0, newest, -1)
    request = tl.max(of_row)
    oldest = tl.where(position >= 0, tl.maximum(position + 1 - window, 0), 1 << 40)
    begin = tl.min(oldest) // block_size
    end = tl.max(newest) // block_size + 1  # 0 if every row is padding
    end = tl.where(tl.max(newest) < 0, 0, end)
    per_split = tl.cdiv(tl.maximum(end - begin, 0), SPLITS)
    begin = begin + split * per_split
    end = tl.minimum(begin + per_split, end)

    at = (row.to(tl.int64) * HEADS + head) * SHARED + m % SHARED
    query = q_ptr + at[:, None] * DIM
    at_0 = query + element(j, 0, K_ELEM, DIM, K_ORDER)
    q0 = tl.load(at_0, mask=known[:, None], other=0.0).to(PRODUCT)
    at_1 = query + element(j, 1, K_ELEM, DIM, K_ORDER)
    q1 = tl.load(at_1, mask=known[:, None], other=0.0).to(PRODUCT)
    peak = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    acc0 = tl.zeros((QUERIES, DIM // 2), tl.float32)
    acc1 = tl.zeros((QUERIES, DIM // 2), tl.float32)
    for block in range(begin, end):
        page = tl.load(table_ptr + request * table_width + block) * HEADS + head
        start = block * block_size
        seen_from = tl.minimum(tl.maximum(oldest - start, 0), TOKENS).to(tl.int32)
        stop = tl.minimum(tl.maximum(newest + 1 - start, 0), TOKENS).to(tl.int32)
        peak, total, acc0, acc1 = attend_page(
            q0, q1, peak, total, acc0, acc1, k_ptr + page * K_BYTES, v_ptr + page * V_BYTES,
            seen_from, stop, to_log2, TOKENS, DIM,
            K_ELEM, K_SCALE, K_GROUP, K_SCALE_AT, K_ORDER,
            V_ELEM, V_SCALE, V_GROUP, V_SCALE_AT, V_ORDER, PRODUCT,
        )  # fmt: skip
    part = split.to(tl.int64) * rows * HEADS * SHARED + at
    tl.store(peak_ptr + part, peak, mask=known)
    tl.store(total_ptr + part, total, mask=known)
    values = values_ptr + part[:, None] * DIM
    tl.store(values + element(j, 0, V_ELEM, DIM, V_ORDER), acc0, mask=known[:, None])
    tl.store(values + element(j, 1, V_ELEM, DIM, V_ORDER), acc1, mask=known[:, None])


def dense(
    cache: LayerCache,
    rows: RowBatch,
    q: torch.Tensor,
    window: int | None,
    plans: Plans,
    arithmetic: Arithmetic,
) -> torch.Tensor:
    """Softmax attention at scale D^-0.5, up to the last position each row sees.

    Args:
        cache: the layer's pages, with this step's keys and values already written.
        rows: R rows.
        q: [R, Hq, D]; query head i uses KV head i // (Hq / Hk).
        window: attend to the ``window`` positions up to the row's own only, and to what it sees
            after it.
        plans: tiles of the step's rows.
        arithmetic: where the kernels run, and the dtype of their products.

    Returns:
        [R, Hq, D] in q's dtype, summed in fp32; zeros for pad rows.
    """
    count, q_heads, dim = q.shape
    heads = cache.pages.kv_heads
    shared = q_heads // heads
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    tiles = plans.tiles(rows, max(1, _QUERIES // shared))
    if tiles.count == 0:
        return out.zero_()
    wanted = -(-arithmetic.multiprocessors * _WAVES // (tiles.count * heads))
    splits = max(1, min(wanted, 64))
    queries = count * q_heads
    # Rows of no tile are padding: their parts have seen nothing.
    peak = torch.full((splits * queries,), -torch.inf, device=q.device)
    total = torch.zeros((splits * queries,), device=q.device)
    values = torch.empty((splits * queries * dim,), device=q.device)
    k, v = page_code(cache.k_layout.geometry), page_code(cache.v_layout.geometry)
    _dense_kernel[(tiles.count, heads, splits)](
        q.contiguous(), rows.positions, rows.seen_to, rows.request_of_row, rows.page_table,
        tiles.bounds,
        cache.k, cache.v, peak, total, values,
        count, rows.page_table.shape[1], rows.block_size,
        (1 << 40) if window is None else window, dim**-0.5 * LOG2_E,
        HEADS=heads, SHARED=shared, QUERIES=max(16, power_of_2(tiles.widest * shared)),
        SPLITS=splits, TOKENS=k.tokens, DIM=dim,
        K_ELEM=k.elem, K_SCALE=k.scale, K_GROUP=k.group, K_SCALE_AT=k.scale_at,
        K_BYTES=k.page_bytes, K_ORDER=k.order,
        V_ELEM=v.elem, V_SCALE=v.scale, V_GROUP=v.group, V_SCALE_AT=v.scale_at,
        V_BYTES=v.page_bytes, V_ORDER=v.order, PRODUCT=arithmetic.product(q.dtype),
    )  # fmt: skip
    merge(peak, total, values, out, splits)
    return out
