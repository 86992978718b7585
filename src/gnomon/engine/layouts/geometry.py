"""What a page looks like: regions, bytes and names. No tensors here, so that planning is cheap.

A page holds one field (the keys of one head, the values of one head, or the index keys) of
``tokens`` consecutive positions. Everything that has to know bytes (pools, pricing, kernels,
offload, documentation) reads a :class:`PageGeometry`; nothing else tests a cache format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gnomon.engine.errors import LayoutError
from gnomon.engine.options import CacheFormat

Role = Literal["kv", "key", "value", "index"]
Order = Literal["row_major", "operand", "value"]

_OPERAND_MULTIPLE = 32  # elements, or tokens, of one product's contraction

MXFP4_GROUP = 32  # elements that share one e8m0 scale (OCP Microscaling Formats v1.0)
NVFP4_GROUP = 16  # elements that share one e4m3 scale

ITEM_BYTES: dict[str, int] = {
    "float32": 4,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "e2m1x2": 1,  # two codes a byte, the even element in the low nibble
    "e8m0": 1,
}


@dataclass(frozen=True)
class Region:
    """A contiguous part of a page, one row a token.

    Attributes:
        name: "data" or "scale".
        offset: first byte inside the page.
        nbytes: length in bytes.
        dtype: element dtype, a key of :data:`ITEM_BYTES`.
        shape: elements, tokens first.
    """

    name: str
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in this region."""
        return self.nbytes // self.shape[0]


@dataclass(frozen=True)
class PageGeometry:
    """Bytes of one page of one field.

    Attributes:
        name: identity of the layout, scale kind and shape included; equal names hold equal bytes.
        format: the cache format.
        tokens: positions a page.
        dim: elements a token.
        regions: data first, then scales if the format has any; they tile the page.
        order: place of the data bytes inside a token's row, see :mod:`gnomon.engine.layouts.order`.
    """

    name: str
    format: CacheFormat
    tokens: int
    dim: int
    regions: tuple[Region, ...]
    order: Order = "row_major"

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return sum(region.nbytes for region in self.regions)

    @property
    def alignment(self) -> int:
        """Bytes that page addresses are multiples of: the largest power of two in the size."""
        return self.page_bytes & -self.page_bytes

    def region(self, name: str) -> Region:
        """The region called ``name``.

        Raises:
            KeyError: the layout has no such region.
        """
        for region in self.regions:
            if region.name == name:
                return region
        raise KeyError(f"layout {self.name} has no region {name!r}")


@dataclass(frozen=True)
class LayerPages:
    """Pages one layer owns per block: K and V of every head, and at most one index page.

    Attributes:
        kv_heads: KV heads on this rank.
        k: page of the keys of one head.
        v: page of the values of one head.
        index: page of the index keys; None for dense layers and layers that reuse a selection.
    """

    kv_heads: int
    k: PageGeometry
    v: PageGeometry
    index: PageGeometry | None

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of this layer."""
        index = self.index.page_bytes if self.index is not None else 0
        return self.kv_heads * (self.k.page_bytes + self.v.page_bytes) + index


@dataclass(frozen=True)
class _Shape:
    """One region before it has an offset: name, dtype, and elements per token (None: scalar)."""

    name: str
    dtype: str
    per_token: int | None


def _plain(dtype: str) -> Callable[[int, Role], tuple[str, tuple[_Shape, ...]]]:
    def shapes(dim: int, role: Role) -> tuple[str, tuple[_Shape, ...]]:
        return "", (_Shape("data", dtype, dim),)

    return shapes


def _fp8(dim: int, role: Role) -> tuple[str, tuple[_Shape, ...]]:
    data = _Shape("data", "float8_e4m3fn", dim)
    if role == "index":  # post-norm index keys are O(1): a saturating cast needs no scale
        return "_e4m3_unit", (data,)
    return "_e4m3_token", (data, _Shape("scale", "float32", None))


def _fp4(group: int, scale_dtype: str) -> Callable[[int, Role], tuple[str, tuple[_Shape, ...]]]:
    def shapes(dim: int, role: Role) -> tuple[str, tuple[_Shape, ...]]:
        data = _Shape("data", "e2m1x2", dim // 2)
        return "", (data, _Shape("scale", scale_dtype, dim // group))

    return shapes


@dataclass(frozen=True)
class _Format:
    """How a format lays out a token: dims must be multiples of ``multiple``."""

    multiple: int
    shapes: Callable[[int, Role], tuple[str, tuple[_Shape, ...]]]


_FORMATS: dict[CacheFormat, _Format] = {
    CacheFormat.FP32: _Format(1, _plain("float32")),
    CacheFormat.BF16: _Format(1, _plain("bfloat16")),
    CacheFormat.FP8: _Format(4, _fp8),  # 4: keeps the fp32 scales aligned
    CacheFormat.MXFP4: _Format(MXFP4_GROUP, _fp4(MXFP4_GROUP, "e8m0")),
    CacheFormat.NVFP4: _Format(NVFP4_GROUP, _fp4(NVFP4_GROUP, "float8_e4m3fn")),
}


def _order(spec: _Format, tokens: int, dim: int, role: Role) -> Order:
    """4-bit pages lie in the order of a product's operand, if their shape allows."""
    packed = any(shape.dtype == "e2m1x2" for shape in spec.shapes(dim, role)[1])
    if not packed or dim % _OPERAND_MULTIPLE:
        return "row_major"
    if role in ("index", "key"):
        return "operand"
    return "value" if role == "value" and tokens % _OPERAND_MULTIPLE == 0 else "row_major"


def geometry(fmt: CacheFormat, tokens: int, dim: int, role: Role) -> PageGeometry:
    """The page of ``tokens`` x ``dim`` elements in ``fmt``.

    Args:
        fmt: cache format.
        tokens: positions a page (the block size).
        dim: elements a token (head dim or index dim).
        role: what the page holds: keys, values, or index keys; "kv" for keys or values in plain
            row-major order, the order of exchange.

    Raises:
        LayoutError: the format cannot store this dim.
    """
    spec = _FORMATS[fmt]
    if tokens < 1 or dim < 1 or dim % spec.multiple:
        raise LayoutError(
            f"a {fmt.value} cache page cannot hold {tokens} tokens of {dim} elements: the element "
            f"count must be a positive multiple of {spec.multiple}; choose another cache format"
        )
    suffix, shapes = spec.shapes(dim, role)
    regions: list[Region] = []
    offset = 0
    for shape in shapes:
        elements = (tokens,) if shape.per_token is None else (tokens, shape.per_token)
        nbytes = tokens * (shape.per_token or 1) * ITEM_BYTES[shape.dtype]
        regions.append(Region(shape.name, offset, nbytes, shape.dtype, elements))
        offset += nbytes
    order = _order(spec, tokens, dim, role)
    name = f"{fmt.value}{suffix}_{tokens}x{dim}" + ("" if order == "row_major" else f"_{order}")
    return PageGeometry(name, fmt, tokens, dim, tuple(regions), order)
