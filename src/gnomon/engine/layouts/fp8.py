"""fp8 pages: e4m3 (finite-only, "fn") elements, with or without a scale per token.

Keys and values carry one fp32 scale per token and head, ``amax / 448``; index keys, which are
normalised and so of order one, are cast at unit scale. Elements are round-to-nearest-even and
saturate at 448.
"""

from __future__ import annotations

import torch

from gnomon.engine.layouts.base import CacheLayout, Encoded, as_bytes, from_bytes, signed_limit

E4M3_MAX = 448.0

#: Smallest scale stored: the smallest normal fp32, so that hardware which flushes subnormals
#: reads the same value. It takes effect below amax 5.3e-36 and costs no precision there: e4m3
#: steps at this scale are finer than bf16's own.
MIN_SCALE = 2.0**-126


def to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """Round finite fp32 to float8_e4m3fn: nearest even, saturating at 448."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


class Fp8UnitLayout(CacheLayout):
    """e4m3 elements at unit scale: one byte an element, no scale region."""

    def encode(self, x: torch.Tensor, infinite: torch.Tensor | None) -> Encoded:
        """See :meth:`CacheLayout.encode`."""
        if infinite is not None:
            x = torch.where(infinite, signed_limit(x, E4M3_MAX), x)
        return Encoded((as_bytes(to_e4m3(x)),))

    def decode(self, encoded: Encoded) -> torch.Tensor:
        """See :meth:`CacheLayout.decode`."""
        return from_bytes(encoded.regions[0], torch.float8_e4m3fn).float()


class Fp8TokenLayout(CacheLayout):
    """e4m3 elements and one fp32 scale a token: ``scale = amax / 448``, 1 for a zero token."""

    def encode(self, x: torch.Tensor, infinite: torch.Tensor | None) -> Encoded:
        """See :meth:`CacheLayout.encode`."""
        finite = x if infinite is None else x.masked_fill(infinite, 0.0)
        amax = finite.abs().amax(-1, keepdim=True)
        # By a tensor: torch on CUDA multiplies by the reciprocal of a Python number.
        scale = (amax / amax.new_full((), E4M3_MAX)).clamp_min(MIN_SCALE)
        scale = torch.where(amax == 0, 1.0, scale)
        scaled = finite / scale
        if infinite is not None:
            scaled = torch.where(infinite, signed_limit(x, E4M3_MAX), scaled)
        return Encoded((as_bytes(to_e4m3(scaled)), as_bytes(scale)))

    def decode(self, encoded: Encoded) -> torch.Tensor:
        """See :meth:`CacheLayout.decode`."""
        data, scale = encoded.regions
        elements = from_bytes(data, torch.float8_e4m3fn).float()
        return elements * from_bytes(scale, torch.float32)
