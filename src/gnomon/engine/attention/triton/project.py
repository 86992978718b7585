"""Per-head norm, partial rope, quantisation and scatter of a step's projection, in one kernel.

A program holds some heads of one kind of some rows. Queries are written out; keys and index keys go
on into their pages, values without norm and rope. Which program does what follows from its number:
those for the cache, which have most to do, come first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gnomon.engine.attention.heads import HeadNorms, Queries, Rotation
from gnomon.engine.attention.rows import RowBatch
from gnomon.engine.attention.triton.codec import (
    BF16,
    E2M1,
    FP32,
    e4m3_code,
    element,
    page_code,
    round_input,
)
from gnomon.engine.attention.triton.launch import Arithmetic, power_of_2
from gnomon.engine.attention.triton.write import count_bad, store_parts
from gnomon.engine.cache.pools import LayerCache
from gnomon.engine.layouts.base import CacheLayout

#: (row, head) pairs a program holds: of queries, and of vectors for the cache, whose quantisation
#: takes more registers.
_QUERIES = 32
_STORED = 16
_ELEMENTS = {torch.float32: 0, torch.bfloat16: 1, torch.float8_e4m3fn: 2}


@triton.jit
def _tile(pid, rows, HEADS: tl.constexpr, WIDE: tl.constexpr, VECTORS: tl.constexpr):
    """Row, head and whether they exist, [VECTORS, 1], of program ``pid`` among those of a kind."""
    ACROSS: tl.constexpr = (HEADS + WIDE - 1) // WIDE
    m = tl.arange(0, VECTORS)[:, None]
    row = pid // ACROSS * (VECTORS // WIDE) + m // WIDE
    head = pid % ACROSS * WIDE + m % WIDE
    return row, head, (row < rows) & (head < HEADS)


@triton.jit
def _inverse_rms(x, known, DIM: tl.constexpr, eps):
    """fp32 [VECTORS, 1]: one over the root of the mean square of vectors at x [VECTORS, 1]."""
    d = tl.arange(0, DIM)[None, :]
    value = tl.load(x + d, mask=known, other=0.0).to(tl.float32)
    return tl.rsqrt(tl.sum(value * value, 1) / DIM + eps)[:, None]


@triton.jit
def _headed(x, row, known, inverse, weight, cos, sin, d, HALF: tl.constexpr):
    """Normed and rotated elements d [1, W] of vectors at x [VECTORS, 1], fp32 [VECTORS, W]."""
    turns = d < 2 * HALF
    partner = tl.where(turns, tl.where(d < HALF, d + HALF, d - HALF), d)
    own = tl.load(x + d, mask=known, other=0.0).to(tl.float32) * inverse
    own *= 1.0 + tl.load(weight + d).to(tl.float32)
    other = tl.load(x + partner, mask=known & turns, other=0.0).to(tl.float32) * inverse
    other *= 1.0 + tl.load(weight + partner).to(tl.float32)
    angle = row.to(tl.int64) * HALF + d % HALF
    c = tl.load(cos + angle, mask=known & turns, other=1.0)
    s = tl.load(sin + angle, mask=known & turns, other=0.0)
    # Added to or taken from exactly as the formula says: a - b and a + (-b) are the same.
    return own * c + tl.where(d < HALF, -other, other) * s


@triton.jit
def _store_query(to, d, known, value, INPUT: tl.constexpr, ELEM: tl.constexpr, BITS: tl.constexpr):
    """Round fp32 values to the projection's dtype, and store them as that or as e4m3.

    BITS: round by the bits. The interpreter's casts round otherwise than a device's.
    """
    if ELEM == FP32:
        tl.store(to + d, value, mask=known)
    elif ELEM == BF16 and not BITS:
        tl.store(to + d, value.to(tl.bfloat16), mask=known)
    else:
        m, sign, bad = round_input(value, INPUT)
        nan = value != value
        if ELEM == BF16:
            bits = (tl.where(nan, 0x7FC00000, m.to(tl.int32, bitcast=True)) >> 16) | (sign << 15)
            tl.store(to.to(tl.pointer_type(tl.int16)) + d, bits.to(tl.int16), mask=known)
        else:
            code = tl.where(nan, 0x7F, e4m3_code(tl.where(bad, 448.0, m))) | (sign << 7)
            tl.store(to.to(tl.pointer_type(tl.uint8)) + d, code.to(tl.uint8), mask=known)


@triton.jit
def _project_kernel(
    x_ptr, slots_ptr, cos_ptr, sin_ptr, q_norm, k_norm, index_q_norm, index_k_norm,
    q_ptr, index_q_ptr, k_ptr, v_ptr, index_ptr, sanitised_ptr,
    rows, columns, block_size, eps, end_k, end_v, end_index_k, end_index_q,
    Q_HEADS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, INDEX_DIM: tl.constexpr,
    HALF: tl.constexpr, HALF_WIDE: tl.constexpr, REST_WIDE: tl.constexpr,
    INDEX_REST_WIDE: tl.constexpr, INPUT: tl.constexpr, INDEX_Q: tl.constexpr,
    BITS: tl.constexpr, TOKENS: tl.constexpr,
    K_ELEM: tl.constexpr, K_SCALE: tl.constexpr, K_GROUP: tl.constexpr, K_BYTES: tl.constexpr,
    K_SCALE_AT: tl.constexpr, K_ORDER: tl.constexpr,
    V_ELEM: tl.constexpr, V_SCALE: tl.constexpr, V_GROUP: tl.constexpr, V_BYTES: tl.constexpr,
    V_SCALE_AT: tl.constexpr, V_ORDER: tl.constexpr,
    I_ELEM: tl.constexpr, I_SCALE: tl.constexpr, I_GROUP: tl.constexpr, I_BYTES: tl.constexpr,
    I_SCALE_AT: tl.constexpr, I_ORDER: tl.constexpr,
    Q_WIDE: tl.constexpr, INDEX_WIDE: tl.constexpr, WIDE: tl.constexpr,
    QUERIES: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    """See the module; INDEX_DIM is 0 without an index branch."""
    pid = tl.program_id(0)
    if pid < end_k:
        _store_vectors(
            x_ptr + Q_HEADS * DIM, slots_ptr, k_norm, cos_ptr, sin_ptr, k_ptr, sanitised_ptr,
            pid, rows, columns, block_size, eps, HEADS, HALF, INPUT, True, DIM,
            TOKENS, K_ELEM, K_SCALE, K_GROUP, K_BYTES, K_SCALE_AT, K_ORDER, WIDE, STORED,
        )  # fmt: skip
    elif pid < end_v:
        _store_vectors(
            x_ptr + (Q_HEADS + HEADS) * DIM, slots_ptr, k_norm, cos_ptr, sin_ptr, v_ptr,
            sanitised_ptr, pid - end_k, rows, columns, block_size, eps, HEADS, HALF, INPUT, False,
            DIM, TOKENS, V_ELEM, V_SCALE, V_GROUP, V_BYTES, V_SCALE_AT, V_ORDER, WIDE, STORED,
        )  # fmt: skip
    elif pid < end_index_k:
        if INDEX_DIM > 0:
            _store_vectors(
                x_ptr + (Q_HEADS + 2 * HEADS) * DIM + HEADS * INDEX_DIM, slots_ptr, index_k_norm,
                cos_ptr, sin_ptr, index_ptr, sanitised_ptr, pid - end_v, rows, columns, block_size,
                eps, 1, HALF, INPUT, True, INDEX_DIM, TOKENS,
                I_ELEM, I_SCALE, I_GROUP, I_BYTES, I_SCALE_AT, I_ORDER, 1, STORED,
            )  # fmt: skip
    elif pid < end_index_q:
        if INDEX_DIM > 0:
            _write_queries(
                x_ptr + (Q_HEADS + 2 * HEADS) * DIM, index_q_ptr, index_q_norm, cos_ptr, sin_ptr,
                pid - end_index_k, rows, columns, eps,
                HEADS, INDEX_DIM, HALF, INPUT, INDEX_Q, HALF_WIDE, INDEX_REST_WIDE, BITS,
                INDEX_WIDE, QUERIES,
            )  # fmt: skip
    else:
        _write_queries(
            x_ptr, q_ptr, q_norm, cos_ptr, sin_ptr, pid - end_index_q, rows, columns, eps,
            Q_HEADS, DIM, HALF, INPUT, INPUT, HALF_WIDE, REST_WIDE, BITS, Q_WIDE, QUERIES,
        )  # fmt: skip


@triton.jit
def _write_queries(
    x_ptr, to_ptr, weight, cos, sin, pid, rows, columns, eps,
    HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, INPUT: tl.constexpr,
    OUTPUT: tl.constexpr, HALF_WIDE: tl.constexpr, REST_WIDE: tl.constexpr, BITS: tl.constexpr,
    WIDE: tl.constexpr, VECTORS: tl.constexpr,
):  # fmt: skip
    """Norm and rotate a tile of heads of x_ptr's rows; out [rows, HEADS, DIM]."""
    # In three parts, so that a pair that turns together is in one thread: the first of each pair,
    # the second, and what does not turn.
    row, head, known = _tile(pid, rows, HEADS, WIDE, VECTORS)
    x = x_ptr + row.to(tl.int64) * columns + head * DIM
    to = to_ptr + (row.to(tl.int64) * HEADS + head) * DIM
    REST: tl.constexpr = DIM - 2 * HALF
    h = tl.arange(0, HALF_WIDE)[None, :]
    turns = known & (h < HALF)
    a = tl.load(x + h, mask=turns, other=0.0).to(tl.float32)
    b = tl.load(x + HALF + h, mask=turns, other=0.0).to(tl.float32)
    total = tl.sum(a * a + b * b, 1)
    if REST > 0:
        r = tl.arange(0, REST_WIDE)[None, :]
        stays = known & (r < REST)
        rest = tl.load(x + 2 * HALF + r, mask=stays, other=0.0).to(tl.float32)
        total += tl.sum(rest * rest, 1)
    inverse = tl.rsqrt(total / DIM + eps)[:, None]
    inside = h < HALF
    a *= inverse
    b *= inverse
    a *= 1.0 + tl.load(weight + h, mask=inside, other=0.0).to(tl.float32)
    b *= 1.0 + tl.load(weight + HALF + h, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + row * HALF + h, mask=turns, other=0.0)
    s = tl.load(sin + row * HALF + h, mask=turns, other=0.0)
    _store_query(to, h, turns, a * c - b * s, INPUT, OUTPUT, BITS)
    _store_query(to, HALF + h, turns, b * c + a * s, INPUT, OUTPUT, BITS)
    if REST > 0:
        rest *= inverse
        rest *= 1.0 + tl.load(weight + 2 * HALF + r, mask=r < REST, other=0.0).to(tl.float32)
        _store_query(to, 2 * HALF + r, stays, rest, INPUT, OUTPUT, BITS)


@triton.jit
def _store_vectors(
    x_ptr, slots_ptr, weight, cos, sin, pool, sanitised_ptr, pid, rows, columns, block_size, eps,
    HEADS: tl.constexpr, HALF: tl.constexpr, INPUT: tl.constexpr, HEADED: tl.constexpr,
    DIM: tl.constexpr, TOKENS: tl.constexpr, ELEM: tl.constexpr, SCALE: tl.constexpr,
    GROUP: tl.constexpr, PAGE_BYTES: tl.constexpr, SCALE_AT: tl.constexpr, ORDER: tl.constexpr,
    WIDE: tl.constexpr, VECTORS: tl.constexpr,
):  # fmt: skip
    """Norm and rotate a tile of heads of x_ptr's rows if HEADED, quantise and store them."""
    row, head, known = _tile(pid, rows, HEADS, WIDE, VECTORS)
    x = x_ptr + row.to(tl.int64) * columns + head * DIM
    slot = tl.load(slots_ptr + row, mask=known, other=-1)
    live = known & (slot >= 0)
    block = tl.where(live, slot, 0) // block_size
    t = (tl.where(live, slot, 0) - block * block_size).to(tl.int32)
    page = pool + (block * HEADS + head) * PAGE_BYTES
    # Values that a layout rounds to bf16, or that the model computes in bf16.
    ROUND: tl.constexpr = BF16 if INPUT == BF16 else ELEM
    if HEADED:
        inverse = _inverse_rms(x, live, DIM, eps)
    j = tl.arange(0, DIM // 2)[None, :]
    if HEADED and ELEM == E2M1 and ORDER < 2:
        # Neighbours are the two parts: the values of a thread split where they are.
        d = tl.arange(0, DIM)[None, :]
        value = _headed(x, row, live, inverse, weight, cos, sin, d, HALF)
        a, b = tl.split(tl.reshape(value, (VECTORS, DIM // 2, 2)))
    else:
        d0 = element(j, 0, ELEM, DIM, ORDER)
        d1 = element(j, 1, ELEM, DIM, ORDER)
        if HEADED:
            a = _headed(x, row, live, inverse, weight, cos, sin, d0, HALF)
            b = _headed(x, row, live, inverse, weight, cos, sin, d1, HALF)
        else:
            a = tl.load(x + d0, mask=live, other=0.0).to(tl.float32)
            b = tl.load(x + d1, mask=live, other=0.0).to(tl.float32)
    m0, s0, bad0 = round_input(a, ROUND)
    m1, s1, bad1 = round_input(b, ROUND)
    count_bad(bad0, bad1, live, sanitised_ptr)
    store_parts(page, t, live, m0, s0, bad0, m1, s1, bad1,
                ELEM, SCALE, DIM, GROUP, SCALE_AT, ORDER, TOKENS, VECTORS)  # fmt: skip


def project(
    cache: LayerCache,
    rows: RowBatch,
    projected: torch.Tensor,
    norms: HeadNorms,
    turn: Rotation,
    index_dtype: torch.dtype | None,
    arithmetic: Arithmetic,
) -> Queries:
    """Norm, rotate and store; see :func:`gnomon.engine.attention.reference.project.project`.

    Args:
        cache: the layer's pages, changed in place.
        rows: R rows; slot -1 writes nothing.
        projected: fp32 or bf16 [R, columns].
        norms: the weights.
        turn: angles of the rows.
        index_dtype: dtype of the index queries, None for the projection's.
        arithmetic: where the kernel runs.
    """
    count, columns = projected.shape
    heads, dim = cache.pages.kv_heads, norms.k.shape[0]
    q_heads = norms.widths(columns, heads)[0] // dim
    projected = projected.contiguous()
    device = projected.device
    q = torch.empty((count, q_heads, dim), dtype=projected.dtype, device=device)
    half = turn.cos.shape[-1]
    index_q, index_dim = None, 0
    if norms.index_q is not None:
        index_dim = norms.index_q.shape[0]
        dtype = index_dtype or projected.dtype
        index_q = torch.empty((count, heads, index_dim), dtype=dtype, device=device)
    if count == 0:
        return Queries(q, index_q)
    q_wide, index_wide = (min(_QUERIES, power_of_2(n), 16) for n in (q_heads, heads))
    wide = min(_STORED, power_of_2(heads))

    def programs(heads: int, wide: int, vectors: int) -> int:
        return -(-heads // wide) * -(-count // (vectors // wide))

    kv = programs(heads, wide, _STORED)
    sizes = (
        kv, kv, programs(1, 1, _STORED) if index_dim else 0,
        programs(heads, index_wide, _QUERIES) if index_dim else 0,
        programs(q_heads, q_wide, _QUERIES),
    )  # fmt: skip
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    nothing = projected  # in place of tensors that are not there
    _project_kernel[(ends[4],)](
        projected, rows.slots, turn.cos, turn.sin, norms.q, norms.k,
        _or(norms.index_q, nothing), _or(norms.index_k, nothing),
        q, _or(index_q, nothing), cache.k, cache.v, _or(cache.index, cache.k), cache.sanitised,
        count, columns, rows.block_size, norms.eps, *ends[:4],
        Q_HEADS=q_heads, HEADS=heads, DIM=dim, INDEX_DIM=index_dim, HALF=half,
        HALF_WIDE=power_of_2(half), REST_WIDE=power_of_2(max(1, dim - 2 * half)),
        INDEX_REST_WIDE=power_of_2(max(1, index_dim - 2 * half)), BITS=arithmetic.interpreted,
        INPUT=_ELEMENTS[projected.dtype],
        INDEX_Q=_ELEMENTS[nothing.dtype if index_q is None else index_q.dtype],
        TOKENS=cache.pages.k.tokens,
        **_constants("K", cache.k_layout), **_constants("V", cache.v_layout),
        **_constants("I", cache.index_layout or cache.k_layout),
        Q_WIDE=q_wide, INDEX_WIDE=index_wide, WIDE=wide, QUERIES=_QUERIES, STORED=_STORED,
    )  # fmt: skip
    return Queries(q, index_q)


def _or(x: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    return other if x is None else x


def _constants(name: str, layout: CacheLayout) -> dict[str, int]:
    """The compile-time description of a page under the kernel's names."""
    code = page_code(layout.geometry)
    values = (code.elem, code.scale, code.group, code.page_bytes, code.scale_at, code.order)
    names = ("ELEM", "SCALE", "GROUP", "BYTES", "SCALE_AT", "ORDER")
    return {f"{name}_{key}": value for key, value in zip(names, values, strict=True)}
