"""The interface of a cache layout: numbers in, bytes out, and back.

The formats differ in ``encode`` and ``decode`` only. Rounding to bf16, the policy for NaN and
Inf, and the place of every byte are the same for all of them and live here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from gnomon.engine.errors import NonFiniteCacheInput
from gnomon.engine.layouts.geometry import PageGeometry, Region
from gnomon.engine.layouts.order import (
    OPERAND,
    VALUE,
    arrange,
    arrange_values,
    restore,
    restore_values,
    value_code_places,
    value_scale_places,
)


@dataclass(frozen=True)
class Encoded:
    """Token vectors as bytes.

    Attributes:
        regions: one uint8 tensor [..., bytes of a token in the region] per region of the layout,
            in the geometry's order, all with the same leading dims.
    """

    regions: tuple[torch.Tensor, ...]


class CacheLayout(ABC):
    """Quantises token vectors and places their bytes in pages.

    Attributes:
        geometry: regions and bytes of a page.
    """

    #: dtype values are rounded to before they are quantised, so that a bf16 oracle can reproduce
    #: every byte; the fp32 reference format alone does not round.
    input_dtype: torch.dtype = torch.bfloat16

    def __init__(self, geometry: PageGeometry) -> None:
        self.geometry = geometry

    @abstractmethod
    def encode(self, x: torch.Tensor, infinite: torch.Tensor | None) -> Encoded:
        """Encode x, fp32 [..., dim] and already rounded to ``input_dtype``.

        Args:
            x: values, no NaN. Infinite ones must not influence the scale of their group, and
                become the largest code of their sign.
            infinite: bool [..., dim], or None when all values are finite.
        """

    @abstractmethod
    def decode(self, encoded: Encoded) -> torch.Tensor:
        """The fp32 [..., dim] values of ``encoded``; a function of the bytes alone."""

    def quantise(
        self,
        x: torch.Tensor,
        *,
        strict: bool = False,
        sanitised: torch.Tensor | None = None,
    ) -> Encoded:
        """Turn values into bytes.

        Args:
            x: floating [..., dim].
            strict: refuse NaN and Inf instead of replacing them by the largest finite code (of
                Inf's sign; positive for NaN, whose sign bit means nothing).
            sanitised: int64 [] counter, increased in place by the number of replaced values.

        Raises:
            NonFiniteCacheInput: ``strict`` and x holds NaN or Inf (after rounding to bf16).
        """
        values = x.to(self.input_dtype).float()
        # NaN and Inf are exactly the values whose product with zero is not zero; one reduction
        # decides the ordinary case without a mask.
        if bool(torch.isfinite((values * 0.0).sum())):
            return self.encode(values, None)
        nonfinite = ~torch.isfinite(values)
        count = nonfinite.sum()
        if strict:
            raise NonFiniteCacheInput(
                f"{int(count)} of {values.numel()} values for a {self.geometry.name} cache page "
                "are NaN or Inf; find the layer that made them, or run without the strict check "
                "to store the largest finite code instead"
            )
        if sanitised is not None:
            sanitised += count
        return self.encode(values.masked_fill(values.isnan(), torch.inf), nonfinite)

    def dequantise(self, encoded: Encoded, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Turn bytes into values [..., dim] of ``dtype`` (float32 or bfloat16).

        float32 is the format's value; bfloat16 is that value rounded once, which for bf16,
        MXFP4 and NVFP4 changes nothing.
        """
        return self.decode(encoded).to(dtype)

    def store(
        self,
        pages: torch.Tensor,
        page: torch.Tensor,
        offset: torch.Tensor,
        encoded: Encoded,
    ) -> None:
        """Write R token vectors into their pages, in place.

        Args:
            pages: uint8 [N, page_bytes], contiguous.
            page: int64 [R], index into ``pages``.
            offset: int64 [R], token inside the page.
            encoded: leading dims [R].
        """
        for region, data in zip(self.geometry.regions, encoded.regions, strict=True):
            if self.geometry.order == VALUE:
                codes = arrange_values(data) if region.name == "data" else data
                places = self._places(region, pages.device)[offset]
                self._bytes(pages, region)[page[:, None], places] = codes
            else:
                placed = arrange(data) if self._is_arranged(region) else data
                self._tokens(pages, region)[page, offset] = placed

    def load(self, pages: torch.Tensor) -> Encoded:
        """Bytes of every token of ``pages``, uint8 [n, page_bytes], as leading dims [n, tokens]."""
        regions = []
        for region in self.geometry.regions:
            if self.geometry.order == VALUE:
                data = self._bytes(pages, region)[:, self._places(region, pages.device)]
                regions.append(restore_values(data) if region.name == "data" else data)
            else:
                data = self._tokens(pages, region)
                regions.append(restore(data) if self._is_arranged(region) else data)
        return Encoded(tuple(regions))

    def to_row_major(self, pages: torch.Tensor) -> torch.Tensor:
        """Pages [n, page_bytes] with each region in plain [token, element] order.

        The identity for row-major pages, and the way to read those in another order.
        """
        return torch.cat([data.flatten(1) for data in self.load(pages).regions], dim=1)

    def from_row_major(self, row_major: torch.Tensor) -> torch.Tensor:
        """The inverse of :meth:`to_row_major`: uint8 [n, page_bytes] to uint8 [n, page_bytes]."""
        n, tokens = row_major.shape[0], self.geometry.tokens
        pages = torch.empty_like(row_major, memory_format=torch.contiguous_format)
        page = torch.arange(n, device=pages.device).repeat_interleave(tokens)
        offset = torch.arange(tokens, device=pages.device).repeat(n)
        regions = tuple(
            row_major[:, r.offset : r.offset + r.nbytes].reshape(n * tokens, r.token_bytes)
            for r in self.geometry.regions
        )
        self.store(pages, page, offset, Encoded(regions))
        return pages

    def _is_arranged(self, region: Region) -> bool:
        return region.name == "data" and self.geometry.order == OPERAND

    def _tokens(self, pages: torch.Tensor, region: Region) -> torch.Tensor:
        """View of a region of every page as uint8 [n, tokens, token_bytes]."""
        part = self._bytes(pages, region)
        return part.view(pages.shape[0], self.geometry.tokens, region.token_bytes)

    def _bytes(self, pages: torch.Tensor, region: Region) -> torch.Tensor:
        """View of a region of every page as uint8 [n, bytes of the region]."""
        return pages[:, region.offset : region.offset + region.nbytes]

    def _places(self, region: Region, device: torch.device) -> torch.Tensor:
        """Where each token's bytes lie in a region in value order: int64 [tokens, token_bytes]."""
        places = value_code_places if region.name == "data" else value_scale_places
        return places(self.geometry.tokens, region.token_bytes, device)


def signed_limit(x: torch.Tensor, limit: float) -> torch.Tensor:
    """``limit`` with the sign of x."""
    return torch.where(x < 0, -limit, limit)


def as_bytes(values: torch.Tensor) -> torch.Tensor:
    """The bytes of values [..., n] as uint8 [..., n * itemsize], little-endian."""
    if values.numel() == 0:  # torch may give empty tensors strides that no view accepts
        shape = (*values.shape[:-1], values.shape[-1] * values.itemsize)
        return values.new_empty(shape, dtype=torch.uint8)
    return values.contiguous().view(torch.uint8)


def from_bytes(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The inverse of :func:`as_bytes`."""
    return data.contiguous().view(dtype)
