"""Unquantised pages: bf16, and the lossless fp32 reference format."""

from __future__ import annotations

import torch

from gnomon.engine.layouts.base import CacheLayout, Encoded, as_bytes, from_bytes, signed_limit


class PlainLayout(CacheLayout):
    """Values as they are, row-major [token, dim], little-endian.

    ``input_dtype`` is also the stored dtype. Non-finite input becomes the largest finite value.
    """

    def encode(self, x: torch.Tensor, infinite: torch.Tensor | None) -> Encoded:
        """See :meth:`CacheLayout.encode`."""
        if infinite is not None:
            limit = torch.finfo(self.input_dtype).max
            x = torch.where(infinite, signed_limit(x, limit), x)
        return Encoded((as_bytes(x.to(self.input_dtype)),))

    def decode(self, encoded: Encoded) -> torch.Tensor:
        """See :meth:`CacheLayout.decode`."""
        return from_bytes(encoded.regions[0], self.input_dtype).float()


class Bf16Layout(PlainLayout):
    """bf16 pages: 2 bytes an element."""

    input_dtype = torch.bfloat16


class Fp32Layout(PlainLayout):
    """fp32 pages, for exact comparison with an fp32 model; not meant for serving."""

    input_dtype = torch.float32
