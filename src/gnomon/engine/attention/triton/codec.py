"""Bytes of a page to numbers and back, inside a kernel.

Kernels see a vector of D elements as two *parts* of D / 2: for two codes a byte, part 0 is the low
nibbles (even elements) and part 1 the high ones, so that unpacking never moves a value between
threads; for wider elements the parts are the two halves. Products over D are sums over parts.

Everything goes through integer bit patterns rather than narrow float casts: the same operations
then run on a GPU and in the interpreter, whose casts to bf16 and e4m3 round differently.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from gnomon.engine.layouts.geometry import PageGeometry
from gnomon.engine.layouts.order import OPERAND, ROW_MAJOR, VALUE

_ELEMENTS = {"float32": 0, "bfloat16": 1, "float8_e4m3fn": 2, "e2m1x2": 3}
_SCALES = {None: 0, "e8m0": 1, "float8_e4m3fn": 2, "float32": 3}
_ORDERS = {ROW_MAJOR: 0, OPERAND: 1, VALUE: 2}

FP32 = tl.constexpr(0)
BF16 = tl.constexpr(1)
E4M3 = tl.constexpr(2)
E2M1 = tl.constexpr(3)
UNSCALED = tl.constexpr(0)
S_E8M0 = tl.constexpr(1)
S_E4M3 = tl.constexpr(2)
S_FP32 = tl.constexpr(3)

BF16_MAX = tl.constexpr(3.3895313892515355e38)
E4M3_MAX = tl.constexpr(448.0)


class PageCode(NamedTuple):
    """A page geometry as the compile-time numbers of a kernel.

    Attributes:
        elem: element type, an index of this module's element constants.
        scale: scale type, an index of this module's scale constants.
        dim: elements a token.
        group: elements that share a scale.
        tokens: positions a page.
        page_bytes: bytes of a page.
        scale_at: first byte of the scales.
        order: of 4-bit codes: 0 row-major, 1 operand, 2 value; see
            :mod:`gnomon.engine.layouts.order`.
    """

    elem: int
    scale: int
    dim: int
    group: int
    tokens: int
    page_bytes: int
    scale_at: int
    order: int

    @property
    def arranged(self) -> bool:
        """Whether codes lie in operand order: the only other order of index keys."""
        return self.order == _ORDERS[OPERAND]


def page_code(geometry: PageGeometry) -> PageCode:
    """The compile-time description of a page, read off its regions alone."""
    data = geometry.region("data")
    scales = [region for region in geometry.regions if region.name == "scale"]
    per_token = 1
    for extent in scales[0].shape[1:] if scales else ():
        per_token *= extent
    return PageCode(
        elem=_ELEMENTS[data.dtype],
        scale=_SCALES[scales[0].dtype if scales else None],
        dim=geometry.dim,
        group=geometry.dim // per_token,
        tokens=geometry.tokens,
        page_bytes=geometry.page_bytes,
        scale_at=scales[0].offset if scales else 0,
        order=_ORDERS[geometry.order],
    )


@triton.jit
def element(j, PART: tl.constexpr, ELEM: tl.constexpr, DIM: tl.constexpr, ORDER: tl.constexpr = 0):
    """Index in the vector of entry j of a part."""
    if ELEM == E2M1 and ORDER == 2:
        return j // 8 * 16 + j % 8 + 8 * PART
    elif ELEM == E2M1:  # noqa: RET505 - a compile-time branch
        return 2 * j + PART
    else:
        return PART * (DIM // 2) + j


@triton.jit
def code_at(t, j, TOKENS: tl.constexpr, DIM: tl.constexpr, ORDER: tl.constexpr):
    """Where byte j of token t lies: the byte of entry j of both parts, from the page's start."""
    if ORDER == 2:
        # Token 16 k + 8 h + 2 t + o.
        of_token = t // 32 * 512 + t // 16 % 2 * 8 + t // 2 % 4 * 16 + t % 2 * 2 + t // 8 % 2
        return of_token + j // 16 * (16 * TOKENS) + j // 8 % 2 * 4 + j % 8 * 64
    elif ORDER == 1:  # noqa: RET505 - a compile-time branch
        return t * (DIM // 2) + ((j % 16) // 4) * (DIM // 8) + (j // 16) * 4 + j % 4
    else:
        return t * (DIM // 2) + j


@triton.jit
def scale_at(t, g, TOKENS: tl.constexpr, GROUPS: tl.constexpr, ORDER: tl.constexpr):
    """Where the scale of group g of token t lies in the scale region of a 4-bit page."""
    if ORDER == 2:
        of_token = t // 2 % 4 * (TOKENS // 4) + t // 16 * 4 + t // 8 % 2 * 2 + t % 2
        return of_token + g * TOKENS
    else:  # noqa: RET505 - a compile-time branch
        return t * GROUPS + g


@triton.jit
def codes_of(byte, ORDER: tl.constexpr):
    """The codes of a stored byte (int32): of part 0, then of part 1."""
    if ORDER == 2:
        low = ((byte >> 4) & 8) | ((byte >> 1) & 7)
        high = ((byte & 1) << 3) | ((byte >> 4) & 7)
    elif ORDER == 1:
        low = ((byte >> 4) & 8) | ((byte >> 2) & 7)
        high = ((byte >> 2) & 8) | ((byte >> 4) & 4) | (byte & 3)
    else:
        low = byte & 15
        high = byte >> 4
    return low, high


@triton.jit
def byte_with(low, high, ORDER: tl.constexpr):
    """The stored byte of two codes (int32): the inverse of :func:`codes_of`."""
    if ORDER == 2:
        return ((low & 8) << 4) | ((low & 7) << 1) | ((high & 7) << 4) | (high >> 3)
    elif ORDER == 1:  # noqa: RET505 - a compile-time branch
        left = ((low & 8) << 4) | ((low & 7) << 2)
        return left | ((high & 8) << 2) | ((high & 4) << 4) | (high & 3)
    else:
        return low | (high << 4)


@triton.jit
def e4m3_value(code):
    """Fp32 of e4m3 codes (int32 below 256): the bits moved into an fp16 of 2^-8 times the value."""
    half = ((code & 0x7F) << 7) | ((code & 0x80) << 8)
    value = half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((code & 0x7F) == 0x7F, float("nan"), value)


@triton.jit
def e2m1_value(code):
    """Fp32 of e2m1 codes (int32 below 16), through an fp16 of 2^-14 times the value."""
    half = ((code & 7) << 9) | ((code & 8) << 12)
    return half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def e8m0_value(code):
    """Fp32 of e8m0 codes: 2^(code - 127); NaN for 255, and the fp32 subnormal for 0."""
    bits = tl.where(code == 0, 0x00400000, code << 23)
    return tl.where(code == 255, float("nan"), bits.to(tl.float32, bitcast=True))


@triton.jit
def _group_scales(
    page, t, seen, SCALE: tl.constexpr, GROUP: tl.constexpr, AT: tl.constexpr, DIM: tl.constexpr,
    TOKENS: tl.constexpr, ORDER: tl.constexpr,
):  # fmt: skip
    """Scale of each entry of a part of tokens t [T, 1], fp32 [T, D / 2], and the largest code.

    A scale is loaded once and spread over its group in registers.
    """
    T: tl.constexpr = t.shape[0]
    GROUPS: tl.constexpr = DIM // GROUP
    g = tl.arange(0, GROUPS)[None, :]
    at = scale_at(t, g, TOKENS, GROUPS, ORDER)
    code = tl.load(page + AT + at, mask=seen, other=0).to(tl.int32)
    value = e8m0_value(code) if SCALE == S_E8M0 else e4m3_value(code)
    spread = tl.broadcast_to(value[:, :, None], (T, GROUPS, GROUP // 2))
    return tl.reshape(spread, (T, DIM // 2)), tl.max(code)


@triton.jit
def _token_scale(page, t, seen, AT: tl.constexpr):
    """fp32 scales of tokens t."""
    at = (page + AT).to(tl.pointer_type(tl.int32)) + t
    return tl.load(at, mask=seen, other=0).to(tl.float32, bitcast=True)


@triton.jit
def _wide_part(page, t, d, seen, ELEM: tl.constexpr, DIM: tl.constexpr):
    """Unscaled fp32 of elements of a byte or more."""
    if ELEM == FP32:
        at = page.to(tl.pointer_type(tl.int32)) + t * DIM + d
        return tl.load(at, mask=seen, other=0).to(tl.float32, bitcast=True)
    elif ELEM == BF16:  # noqa: RET505 - a compile-time branch
        at = page.to(tl.pointer_type(tl.int16)) + t * DIM + d
        bits = tl.load(at, mask=seen, other=0).to(tl.int32) << 16
        return bits.to(tl.float32, bitcast=True)
    else:
        return e4m3_value(tl.load(page + t * DIM + d, mask=seen, other=0).to(tl.int32))


@triton.jit
def load_parts(
    page,
    t,
    j,
    seen,
    ELEM: tl.constexpr,
    SCALE: tl.constexpr,
    DIM: tl.constexpr,
    GROUP: tl.constexpr,
    SCALE_AT: tl.constexpr,
    ORDER: tl.constexpr,
    TOKENS: tl.constexpr = 0,
):
    """Both parts of tokens t [T, 1] and entries j [1, D / 2] of one page, as fp32 [T, D / 2].

    ``page`` points at its first byte (uint8); ``TOKENS``, those of a page, matter in value order
    alone. Tokens with ``seen`` [T, 1] false read as zero, whatever lies there.
    """
    if ELEM == E2M1:
        at = page + code_at(t, j, TOKENS, DIM, ORDER)
        low, high = codes_of(tl.load(at, mask=seen, other=0).to(tl.int32), ORDER)
        a = e2m1_value(low)
        b = e2m1_value(high)
        scale, largest = _group_scales(page, t, seen, SCALE, GROUP, SCALE_AT, DIM, TOKENS, ORDER)
        a *= scale
        b *= scale
        if SCALE == S_E8M0:  # noqa: SIM102 - one is decided at compile time
            if largest >= 253:  # reaches beyond bf16: the largest finite number
                a = tl.where(a > BF16_MAX, BF16_MAX, tl.where(a < -BF16_MAX, -BF16_MAX, a))
                b = tl.where(b > BF16_MAX, BF16_MAX, tl.where(b < -BF16_MAX, -BF16_MAX, b))
    else:
        a = _wide_part(page, t, element(j, 0, ELEM, DIM), seen, ELEM, DIM)
        b = _wide_part(page, t, element(j, 1, ELEM, DIM), seen, ELEM, DIM)
        if SCALE == S_FP32:
            scale = _token_scale(page, t, seen, SCALE_AT)
            a *= scale
            b *= scale
    return a, b


@triton.jit
def nearest_even(x):
    """Round fp32 x, 0 <= x < 2^22, to the nearest integer, ties to even."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def e2m1_code(magnitude):
    """Codes 0 to 7 (int32) of fp32 magnitudes, nearest even, saturating at 6."""
    m = tl.minimum(magnitude, 6.0)
    fine = nearest_even(m * 2.0)
    middle = nearest_even(m) + 2.0
    coarse = nearest_even(m * 0.5) + 4.0
    return tl.where(m < 2.0, fine, tl.where(m < 4.0, middle, coarse)).to(tl.int32)


@triton.jit
def e4m3_code(magnitude):
    """Codes 0 to 0x7E (int32) of fp32 magnitudes, nearest even, saturating at 448."""
    m = tl.minimum(magnitude, E4M3_MAX)
    bits = m.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960
    small = nearest_even(tl.minimum(m, 1.0) * 512.0).to(tl.int32)
    return tl.where(m < 0.015625, small, normal)


@triton.jit
def round_input(x, ELEM: tl.constexpr):
    """What a layout sees of fp32 x: magnitude, sign bit (0 or 1) and "not finite", as int32.

    All formats but fp32 round to bf16 first; NaN counts as positive.
    """
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    nan = magnitude > 0x7F800000
    if ELEM != FP32:
        rounded = (magnitude + 0x7FFF + ((magnitude >> 16) & 1)) & 0x7FFF0000
        magnitude = tl.where(nan, magnitude, rounded)
    bad = magnitude >= 0x7F800000
    sign = tl.where((bits < 0) & (nan == 0), 1, 0)
    return magnitude.to(tl.float32, bitcast=True), sign, bad
