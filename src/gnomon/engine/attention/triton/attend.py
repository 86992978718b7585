"""One page of softmax attention, and the merge of parts: what sparse and dense have in common."""

from __future__ import annotations

import triton
import triton.language as tl

from gnomon.engine.attention.triton.codec import S_FP32, UNSCALED, load_parts


@triton.jit
def _token_scales(page, t, seen, SCALE_AT: tl.constexpr):
    """fp32 [T] of pages with one scale a token."""
    at = (page + SCALE_AT).to(tl.pointer_type(tl.int32)) + t
    return tl.load(at, mask=seen, other=0).to(tl.float32, bitcast=True)


@triton.jit
def attend_page(
    q0, q1, peak, total, acc0, acc1, k_page, v_page, begin, stop, to_log2,
    TOKENS: tl.constexpr, DIM: tl.constexpr,
    K_ELEM: tl.constexpr, K_SCALE: tl.constexpr, K_GROUP: tl.constexpr, K_SCALE_AT: tl.constexpr,
    K_ORDER: tl.constexpr,
    V_ELEM: tl.constexpr, V_SCALE: tl.constexpr, V_GROUP: tl.constexpr, V_SCALE_AT: tl.constexpr,
    V_ORDER: tl.constexpr,
    PRODUCT: tl.constexpr,
):  # fmt: skip
    """Add one page to the running softmax of M queries; returns peak, total, acc0 and acc1.

    The queries are q0 and q1 [M, D / 2], their two parts in the product dtype. So far, ``peak``
    fp32 [M] is the largest logit in units of log2, ``total`` fp32 [M] the sum of
    2^(logit - peak), ``acc0`` and ``acc1`` fp32 [M, D / 2] the parts of the weighted sum of
    values. ``k_page`` and ``v_page`` point at the page's first bytes; tokens ``begin`` [M] up to
    but not including ``stop`` [M] are visible. ``to_log2`` is the softmax scale times log2(e). The
    constants describe the pages, see PageCode.
    """
    j = tl.arange(0, DIM // 2)[None, :]
    t = tl.arange(0, TOKENS)
    # What nobody sees may be NaN, and 0 * NaN is NaN: it reads as zero.
    seen = t < tl.max(stop)
    # A scale per token is no part of the contraction over the head dim: it multiplies the logits,
    # and for values the weights, so that the products' operands stay exact in bf16.
    K_INNER: tl.constexpr = UNSCALED if K_SCALE == S_FP32 else K_SCALE
    V_INNER: tl.constexpr = UNSCALED if V_SCALE == S_FP32 else V_SCALE
    k0, k1 = load_parts(k_page, t[:, None], j, seen[:, None],
                        K_ELEM, K_INNER, DIM, K_GROUP, K_SCALE_AT, K_ORDER, TOKENS)  # fmt: skip
    logits = tl.dot(q0, tl.trans(k0.to(PRODUCT)), input_precision="ieee")
    logits = tl.dot(q1, tl.trans(k1.to(PRODUCT)), logits, input_precision="ieee")
    logits *= to_log2
    if K_SCALE == S_FP32:
        logits *= _token_scales(k_page, t, seen, K_SCALE_AT)[None, :]
    visible = (t[None, :] >= begin[:, None]) & (t[None, :] < stop[:, None])
    logits = tl.where(visible, logits, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(logits, 1))
    shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(logits - shift[:, None])
    decay = tl.exp2(peak - shift)
    total = total * decay + tl.sum(weights, 1)
    v0, v1 = load_parts(v_page, t[:, None], j, seen[:, None],
                        V_ELEM, V_INNER, DIM, V_GROUP, V_SCALE_AT, V_ORDER, TOKENS)  # fmt: skip
    acc0 *= decay[:, None]
    acc1 *= decay[:, None]
    if V_SCALE == S_FP32:
        # Weights times scales, as a share of the page's largest, keep more bits in fp16 than in
        # bf16, and e4m3 values are exact in both.
        scales = _token_scales(v_page, t, seen, V_SCALE_AT)
        largest = tl.maximum(tl.max(scales), 1.1754943508222875e-38)
        weights *= (scales / largest)[None, :]
        VALUE: tl.constexpr = tl.float16 if tl.bfloat16 == PRODUCT else PRODUCT
        p = weights.to(VALUE)
        acc0 += largest * tl.dot(p, v0.to(VALUE), input_precision="ieee")
        acc1 += largest * tl.dot(p, v1.to(VALUE), input_precision="ieee")
    else:
        p = weights.to(PRODUCT)
        acc0 = tl.dot(p, v0.to(PRODUCT), acc0, input_precision="ieee")
        acc1 = tl.dot(p, v1.to(PRODUCT), acc1, input_precision="ieee")
    return new_peak, total, acc0, acc1


@triton.jit
def merge_kernel(
    peak_ptr, total_ptr, values_ptr, out_ptr, queries,
    SPLITS: tl.constexpr, DIM: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Merge parts: peak and total fp32 [SPLITS, queries], values [SPLITS, queries, DIM].

    Out [queries, DIM]; zeros where no part saw anything.
    """
    m = tl.program_id(0) * STEP + tl.arange(0, STEP)
    d = tl.arange(0, DIM)[None, :]
    known = m < queries
    peak = tl.full((STEP,), float("-inf"), tl.float32)
    total = tl.zeros((STEP,), tl.float32)
    acc = tl.zeros((STEP, DIM), tl.float32)
    for split in range(SPLITS):
        at = split * queries + m
        part_peak = tl.load(peak_ptr + at, mask=known, other=float("-inf"))
        new_peak = tl.maximum(peak, part_peak)
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        decay = tl.exp2(peak - shift)
        weight = tl.exp2(part_peak - shift)
        total = total * decay + weight * tl.load(total_ptr + at, mask=known, other=0.0)
        values = tl.load(values_ptr + at.to(tl.int64)[:, None] * DIM + d,
                         mask=known[:, None], other=0.0)  # fmt: skip
        acc = acc * decay[:, None] + values * weight[:, None]
        peak = new_peak
    out = tl.where(total[:, None] > 0, acc / tl.where(total > 0, total, 1.0)[:, None], 0.0)
    to = out_ptr + m.to(tl.int64)[:, None] * DIM + d
    tl.store(to, out.to(out_ptr.dtype.element_ty), mask=known[:, None])
