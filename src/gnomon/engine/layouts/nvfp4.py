"""NVFP4 pages: e2m1 elements, one e4m3 scale per 16 of them, no tensor-level scale.

The rule is the one MiniMax-M3.1's caches were trained with (MiniMax-AI/MSA, "Q8KV4"):
``scale = max(e4m3(min(max(amax, 1e-12) / 6, 448)), 2^-9)``, codes by true division. A page of
128 x 128 is 8,192 data bytes, then 1,024 scale bytes.
"""

from __future__ import annotations

import torch

from gnomon.engine.layouts.base import CacheLayout, Encoded, as_bytes, from_bytes
from gnomon.engine.layouts.e2m1 import E2M1_MAX, decode_bytes, encode_magnitude, grouped, pack
from gnomon.engine.layouts.fp8 import E4M3_MAX, to_e4m3
from gnomon.engine.layouts.geometry import NVFP4_GROUP

MIN_SCALE = 2.0**-9  # the smallest e4m3 subnormal
_MIN_AMAX = 1e-12


def nvfp4_scales(amax: torch.Tensor) -> torch.Tensor:
    """e4m3 scales of group maxima: fp32 [...], finite and not negative, to float8_e4m3fn [...]."""
    # By a tensor: torch on CUDA multiplies by the reciprocal of a Python number.
    wanted = amax.clamp_min(_MIN_AMAX) / amax.new_full((), E2M1_MAX)
    rounded = to_e4m3(wanted.clamp_max(E4M3_MAX)).float()
    return rounded.clamp_min(MIN_SCALE).to(torch.float8_e4m3fn)


class Nvfp4Layout(CacheLayout):
    """e2m1 codes [token, dim / 2 bytes], then e4m3 bytes [token, dim / 16].

    The range ends at 6 * 448 = 2,688: larger magnitudes saturate. Elements that round to zero,
    negative ones too, are code 0, never 8. Non-finite input becomes code 7 or 15 at the scale of
    the group's finite elements.

    Decoded values are the exact products ``e2m1 * e4m3``, which bf16 holds exactly (at most six
    significant bits). The vendor's kernels round them once more, to e4m3; this does not.
    """

    def encode(self, x: torch.Tensor, infinite: torch.Tensor | None) -> Encoded:
        """See :meth:`CacheLayout.encode`."""
        groups = grouped(x, NVFP4_GROUP)
        magnitude = groups.abs()
        bad = None if infinite is None else grouped(infinite, NVFP4_GROUP)
        if bad is not None:
            magnitude = magnitude.masked_fill(bad, 0.0)
        scale = nvfp4_scales(magnitude.amax(-1, keepdim=True))
        codes = encode_magnitude(magnitude / scale.float())
        if bad is not None:
            codes = codes.masked_fill(bad, 7.0)
        codes = torch.where(torch.signbit(groups) & (codes > 0), codes + 8.0, codes)
        packed = pack(codes.flatten(-2).to(torch.uint8))
        return Encoded((packed, as_bytes(scale.squeeze(-1))))

    def decode(self, encoded: Encoded) -> torch.Tensor:
        """See :meth:`CacheLayout.decode`."""
        data, scale = encoded.regions
        groups = grouped(decode_bytes(data), NVFP4_GROUP)
        groups.mul_(from_bytes(scale, torch.float8_e4m3fn).float().unsqueeze(-1))
        return groups.flatten(-2)
