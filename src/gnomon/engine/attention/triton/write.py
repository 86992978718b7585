"""Quantise rows and scatter them into pages, byte for byte as the layouts do."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gnomon.engine.attention.rows import RowBatch
from gnomon.engine.attention.triton.codec import (
    BF16,
    E2M1,
    E4M3_MAX,
    FP32,
    S_E8M0,
    S_FP32,
    byte_with,
    code_at,
    e2m1_code,
    e4m3_code,
    e4m3_value,
    element,
    page_code,
    round_input,
    scale_at,
)
from gnomon.engine.layouts.base import CacheLayout

#: Rows a program stores.
ROWS = 8


@triton.jit
def _group_max(a, b, ROWS: tl.constexpr, PER_TOKEN: tl.constexpr, HALF: tl.constexpr):
    """Largest of both parts in each group: fp32 [ROWS, PER_TOKEN]."""
    shape: tl.constexpr = (ROWS, PER_TOKEN, HALF // PER_TOKEN)
    return tl.maximum(tl.max(tl.reshape(a, shape), 2), tl.max(tl.reshape(b, shape), 2))


@triton.jit
def _spread(x, ROWS: tl.constexpr, PER_TOKEN: tl.constexpr, HALF: tl.constexpr):
    """[ROWS, PER_TOKEN] to [ROWS, HALF]: the value of each entry's group."""
    shape: tl.constexpr = (ROWS, PER_TOKEN, HALF // PER_TOKEN)
    return tl.reshape(tl.broadcast_to(x[:, :, None], shape), (ROWS, HALF))


@triton.jit
def _e2m1_part(m, sign, bad, amax, inverse, scale, SCALE: tl.constexpr):
    """Codes 0 to 15 of one part. Scale and group maximum are spread over its entries."""
    if SCALE == S_E8M0:
        code = e2m1_code(m * inverse)
        negative = (sign == 1) & (amax > 0)  # a zero group has no negative zeros
    else:
        code = e2m1_code(tl.div_rn(m, scale))
        negative = sign == 1
    code = tl.where(bad, 7, code)
    if SCALE != S_E8M0:
        negative = negative & (code > 0)
    return tl.where(negative, code + 8, code)


@triton.jit
def _store_e2m1(
    page, t, j, live, a, sa, bad_a, b, sb, bad_b,
    SCALE: tl.constexpr, DIM: tl.constexpr, GROUP: tl.constexpr, SCALE_AT: tl.constexpr,
    ORDER: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Encode and store both parts of 4-bit rows, and their scales."""
    HALF: tl.constexpr = DIM // 2
    PER_TOKEN: tl.constexpr = DIM // GROUP
    finite_a = tl.where(bad_a, 0.0, a)
    finite_b = tl.where(bad_b, 0.0, b)
    amax = _group_max(finite_a, finite_b, ROWS, PER_TOKEN, HALF)
    if SCALE == S_E8M0:
        quotient = tl.div_rn(amax, 6.0).to(tl.int32, bitcast=True)
        code = (quotient >> 23) + tl.where((quotient & 0x7FFFFF) != 0, 1, 0)
        inverse = ((254 - code) << 23).to(tl.float32, bitcast=True)
        # Groups with a value that is not finite are not zero groups: their signs count.
        some = _group_max(tl.where(bad_a, 1.0, 0.0), tl.where(bad_b, 1.0, 0.0),
                          ROWS, PER_TOKEN, HALF)  # fmt: skip
        weight = amax + some
        scale = inverse
    else:
        code = tl.maximum(e4m3_code(tl.div_rn(tl.maximum(amax, 1e-12), 6.0)), 1)
        scale = e4m3_value(code)
        inverse = scale
        weight = amax
    wide_weight = _spread(weight, ROWS, PER_TOKEN, HALF)
    wide_inverse = _spread(inverse, ROWS, PER_TOKEN, HALF)
    wide_scale = _spread(scale, ROWS, PER_TOKEN, HALF)
    low = _e2m1_part(finite_a, sa, bad_a, wide_weight, wide_inverse, wide_scale, SCALE)
    high = _e2m1_part(finite_b, sb, bad_b, wide_weight, wide_inverse, wide_scale, SCALE)
    byte = byte_with(low, high, ORDER)
    tl.store(page + code_at(t, j, TOKENS, DIM, ORDER), byte.to(tl.uint8), mask=live)
    g = tl.arange(0, PER_TOKEN)[None, :]
    at = page + SCALE_AT + scale_at(t, g, TOKENS, PER_TOKEN, ORDER)
    tl.store(at, code.to(tl.uint8), mask=live)


@triton.jit
def _store_wide(page, t, d, live, m, sign, bad, ELEM: tl.constexpr, DIM: tl.constexpr):
    """Store one part of fp32, bf16 or e4m3 elements given as magnitude and sign."""
    bits = m.to(tl.int32, bitcast=True)
    if ELEM == FP32:
        bits = tl.where(bad, 0x7F7FFFFF, bits) | (sign << 31)
        tl.store(page.to(tl.pointer_type(tl.int32)) + t * DIM + d, bits, mask=live)
    elif ELEM == BF16:
        bits = (tl.where(bad, 0x7F7F0000, bits) >> 16) | (sign << 15)
        tl.store(page.to(tl.pointer_type(tl.int16)) + t * DIM + d, bits.to(tl.int16), mask=live)
    else:
        code = e4m3_code(tl.where(bad, E4M3_MAX, m)) | (sign << 7)
        tl.store(page + t * DIM + d, code.to(tl.uint8), mask=live)


@triton.jit
def store_parts(
    page, t, live, a, sa, bad_a, b, sb, bad_b,
    ELEM: tl.constexpr, SCALE: tl.constexpr, DIM: tl.constexpr, GROUP: tl.constexpr,
    SCALE_AT: tl.constexpr, ORDER: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Quantise ROWS vectors and store them at tokens t [ROWS, 1] of pages ``page`` [ROWS, 1].

    The vectors come as their two parts [ROWS, DIM / 2], each as :func:`round_input` gives it:
    magnitude, sign, not finite.
    """
    j = tl.arange(0, DIM // 2)[None, :]
    if ELEM == E2M1:
        _store_e2m1(page, t, j, live, a, sa, bad_a, b, sb, bad_b,
                    SCALE, DIM, GROUP, SCALE_AT, ORDER, TOKENS, ROWS)  # fmt: skip
    else:
        if SCALE == S_FP32:
            a = tl.where(bad_a, 0.0, a)
            b = tl.where(bad_b, 0.0, b)
            amax = tl.maximum(tl.max(a, 1), tl.max(b, 1))[:, None]
            scale = tl.where(amax == 0, 1.0, tl.maximum(tl.div_rn(amax, E4M3_MAX),
                                                        1.1754943508222875e-38))  # fmt: skip
            a = tl.div_rn(a, tl.broadcast_to(scale, a.shape))
            b = tl.div_rn(b, tl.broadcast_to(scale, b.shape))
            at = (page + SCALE_AT).to(tl.pointer_type(tl.float32)) + t
            tl.store(at, scale, mask=live)
        _store_wide(page, t, element(j, 0, ELEM, DIM, ORDER), live, a, sa, bad_a, ELEM, DIM)
        _store_wide(page, t, element(j, 1, ELEM, DIM, ORDER), live, b, sb, bad_b, ELEM, DIM)


@triton.jit
def count_bad(bad_a, bad_b, live, sanitised_ptr):
    """Count what is replaced in rows that are stored."""
    count = tl.sum((bad_a & live).to(tl.int32) + (bad_b & live).to(tl.int32))
    if count > 0:
        tl.atomic_add(sanitised_ptr, count.to(tl.int64))


@triton.jit
def _write_kernel(
    x_ptr, slots_ptr, pool_ptr, sanitised_ptr, rows, heads, block_size,
    ELEM: tl.constexpr, SCALE: tl.constexpr, DIM: tl.constexpr, GROUP: tl.constexpr,
    PAGE_BYTES: tl.constexpr, SCALE_AT: tl.constexpr, ORDER: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One head of ROWS rows: x [rows, heads, DIM] into pool [blocks, heads, PAGE_BYTES]."""
    head = tl.program_id(1)
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, DIM // 2)[None, :]
    slot = tl.load(slots_ptr + r, mask=r < rows, other=-1)
    live = slot >= 0
    block = tl.where(live, slot, 0) // block_size
    t = (tl.where(live, slot, 0) - block * block_size).to(tl.int32)
    page = pool_ptr + (block * heads + head) * PAGE_BYTES
    d0 = element(j, 0, ELEM, DIM, ORDER)
    d1 = element(j, 1, ELEM, DIM, ORDER)
    row = x_ptr + (r.to(tl.int64) * heads + head) * DIM
    a, sa, bad_a = round_input(tl.load(row + d0, mask=live, other=0.0).to(tl.float32), ELEM)
    b, sb, bad_b = round_input(tl.load(row + d1, mask=live, other=0.0).to(tl.float32), ELEM)
    count_bad(bad_a, bad_b, live, sanitised_ptr)
    store_parts(page, t, live, a, sa, bad_a, b, sb, bad_b,
                ELEM, SCALE, DIM, GROUP, SCALE_AT, ORDER, TOKENS, ROWS)  # fmt: skip


def write_field(
    pool: torch.Tensor,
    layout: CacheLayout,
    x: torch.Tensor,
    rows: RowBatch,
    sanitised: torch.Tensor,
) -> None:
    """Store x [R, H, dim] at the rows' slots of pool uint8 [blocks, H, page bytes].

    Args:
        pool: pages of one field, changed in place.
        layout: layout of the pool.
        x: vectors; rows with slot -1 are ignored, whatever they hold.
        rows: R rows.
        sanitised: int64 [], increased by the number of values that are not finite.
    """
    count, heads, dim = x.shape
    code = page_code(layout.geometry)
    grid = (triton.cdiv(count, ROWS), heads)
    _write_kernel[grid](
        x.contiguous(), rows.slots, pool, sanitised, count, heads, rows.block_size,
        ELEM=code.elem, SCALE=code.scale, DIM=dim, GROUP=code.group,
        PAGE_BYTES=code.page_bytes, SCALE_AT=code.scale_at, ORDER=code.order,
        TOKENS=code.tokens, ROWS=ROWS,
    )  # fmt: skip
