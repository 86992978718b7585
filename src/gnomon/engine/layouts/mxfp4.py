"""MXFP4 pages: e2m1 elements, one power-of-two scale (e8m0) per 32 of them.

The scale follows the RCEIL rule: the smallest power of two not below ``amax / 6``, computed on
the bits of the fp32 quotient, so that no element is ever clipped. Format: OCP Microscaling
Formats v1.0; page of 128 x 128: ROCm/ATOM #2962 (8,192 data bytes, then 512 scale bytes).
"""

from __future__ import annotations

import functools

import torch

from gnomon.engine.layouts.base import CacheLayout, Encoded
from gnomon.engine.layouts.e2m1 import E2M1_MAX, decode_bytes, encode_magnitude, grouped, pack
from gnomon.engine.layouts.geometry import MXFP4_GROUP

BF16_MAX = torch.finfo(torch.bfloat16).max
_MANTISSA = 0x7FFFFF
#: From this scale byte on, the largest codes exceed bf16 and fp32.
_FIRST_OVERFLOWING_BYTE = 253


def rceil_bytes(amax: torch.Tensor, largest: float = E2M1_MAX) -> torch.Tensor:
    """Scale bytes of group maxima: fp32 [...], finite and not negative, to int32 [...].

    The exponent field of ``amax / largest`` (true fp32 division), plus one if any mantissa bit is
    set. Zero gives byte 0; finite bf16 input never gives more than 253.

    Args:
        amax: largest magnitude of each group.
        largest: largest magnitude of an element: 6 of e2m1, 448 of e4m3.
    """
    # By a tensor: torch on CUDA multiplies by the reciprocal of a Python number.
    bits = (amax / amax.new_full((), largest)).view(torch.int32)
    return (bits >> 23) + ((bits & _MANTISSA) != 0).int()


def e8m0_values(scale: torch.Tensor) -> torch.Tensor:
    """Values of scale bytes: uint8 [...] to fp32 [...], 2^(byte - 127), NaN for byte 255."""
    table = _e8m0_table(scale.device)
    return torch.index_select(table, 0, scale.flatten().int()).view(scale.shape)


@functools.cache
def _e8m0_table(device: torch.device) -> torch.Tensor:
    """fp32 [256]; the value of byte 0, 2^-127, is an fp32 subnormal."""
    exponents = torch.arange(256, dtype=torch.float64) - 127
    values = torch.pow(2.0, exponents).float()
    values[255] = torch.nan
    return values.to(device)


class Mxfp4Layout(CacheLayout):
    """e2m1 codes [token, dim / 2 bytes], then e8m0 bytes [token, dim / 32].

    A zero group has scale byte 0 and codes 0. A non-zero group keeps the sign of its zeros and of
    the elements that round to zero. Non-finite input becomes code 7 or 15 at the scale of the
    group's finite elements.

    Decoded values are ``e2m1 * 2^(byte - 127)``, with magnitudes beyond the largest finite bf16
    (possible for bytes 253 and 254 only) replaced by it: bf16 and fp32 read the same number.
    """

    def encode(self, x: torch.Tensor, infinite: torch.Tensor | None) -> Encoded:
        """See :meth:`CacheLayout.encode`."""
        groups = grouped(x, MXFP4_GROUP)
        magnitude = groups.abs()
        bad = None if infinite is None else grouped(infinite, MXFP4_GROUP)
        if bad is not None:
            magnitude = magnitude.masked_fill(bad, 0.0)
        amax = magnitude.amax(-1, keepdim=True)
        scale = rceil_bytes(amax)
        # 2^(127 - byte) from its bits: exact, and finite for byte 0 where a division is not.
        codes = encode_magnitude(magnitude * ((254 - scale) << 23).view(torch.float32))
        if bad is not None:
            codes = codes.masked_fill(bad, 7.0)
            amax = amax + bad.any(-1, keepdim=True)  # not a zero group: its signs count
        codes = torch.where(torch.signbit(groups) & (amax > 0), codes + 8.0, codes)
        packed = pack(codes.flatten(-2).to(torch.uint8))
        return Encoded((packed, scale.squeeze(-1).to(torch.uint8)))

    def decode(self, encoded: Encoded) -> torch.Tensor:
        """See :meth:`CacheLayout.decode`."""
        data, scale = encoded.regions
        groups = grouped(decode_bytes(data), MXFP4_GROUP)
        groups.mul_(e8m0_values(scale).unsqueeze(-1))
        if bool((scale >= _FIRST_OVERFLOWING_BYTE).any()):
            groups.clamp_(-BF16_MAX, BF16_MAX)  # keeps NaN
        return groups.flatten(-2)
