"""Weight matrices, packed or plain, and the linear layers made of them.

Quantised weights stay packed in memory; a kernel may take :class:`Matrix` as it is. The reference
path multiplies by :meth:`Matrix.dense`, made for one use and dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gnomon.engine.layouts.e2m1 import decode_bytes
from gnomon.engine.layouts.mxfp4 import BF16_MAX, e8m0_values
from gnomon.engine.models.weight_formats import GROUP, groups, width_problem
from gnomon.engine.options import WeightFormat
from gnomon.engine.row_tiles import linear

PACKED = (WeightFormat.MXFP4, WeightFormat.NVFP4)
"""Formats with two elements a byte."""


@dataclass(frozen=True)
class Matrix:
    """One matrix, or a stack of them with leading dims (one an expert).

    Attributes:
        format: decides dtypes and meaning of the rest.
        width: input features.
        data: plain: compute dtype [..., out, width]; MXFP8: float8_e4m3fn [..., out, width]; MXFP4
            and NVFP4: uint8 [..., out, width / 2], the even feature in the low nibble.
        scale: of MXFP8 and MXFP4 uint8 [..., out, ceil(width / 32)], meaning 2^(byte - 127); of
            NVFP4 float8_e4m3fn [..., out, ceil(width / 16)].
        row_scale: of NVFP4 fp32 [..., out], the tensor-level factor of the tensor a row is from.
    """

    format: WeightFormat
    width: int
    data: torch.Tensor
    scale: torch.Tensor | None = None
    row_scale: torch.Tensor | None = None

    @property
    def num_rows(self) -> int:
        """Output features."""
        return int(self.data.shape[-2])

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """What is held: data, then scales if the format has any."""
        return tuple(t for t in (self.data, self.scale, self.row_scale) if t is not None)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(t.nbytes for t in self.tensors)

    def rows(self, start: int, stop: int) -> Matrix:
        """View of some output features."""
        return self._each(lambda t: t[..., start:stop, :], lambda t: t[..., start:stop])

    def columns(self, start: int, stop: int) -> Matrix:
        """View of some input features: what a rank of a row-parallel layer holds.

        Raises:
            ValueError: the cut is inside a group of a quantised format.
        """
        data, scale = slice(start, stop), slice(None)
        if self.format is not WeightFormat.PLAIN:
            size = GROUP[self.format]
            if start % size or (stop % size and stop != self.width):
                raise ValueError(
                    f"input features {start} to {stop} cut a {self.format.value} group of {size}"
                )
            scale = slice(start // size, -(-stop // size))
            data = slice(start // 2, stop // 2) if self.format in PACKED else data
        return Matrix(
            self.format,
            stop - start,
            self.data[..., data],
            None if self.scale is None else self.scale[..., scale],
            self.row_scale,
        )

    def __getitem__(self, index: int) -> Matrix:
        """One matrix of a stack, as a view."""
        return self._each(lambda t: t[index], lambda t: t[index])

    def values(self) -> torch.Tensor:
        """The numbers the bytes mean, fp32 [..., out, width]; a new tensor if quantised.

        MXFP8 and MXFP4 magnitudes beyond the largest finite bf16 (possible only with scale bytes
        near 254) become that, as in the caches' MXFP4 pages: bf16 and fp32 read the same number.
        """
        if self.scale is None:
            return self.data.float()
        packed = self.format in PACKED
        elements = decode_bytes(self.data) if packed else self.data.float()
        scale = e8m0_values(self.scale) if self.row_scale is None else self.scale.float()
        wide = scale.repeat_interleave(GROUP[self.format], dim=-1)[..., : self.width]
        elements.mul_(wide)
        if self.row_scale is not None:
            return elements.mul_(self.row_scale[..., None])
        return elements.clamp_(-BF16_MAX, BF16_MAX)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """:meth:`values`, rounded once to ``dtype``; no copy of a plain matrix that has it."""
        if self.format is WeightFormat.PLAIN:
            return self.data.to(dtype)
        return self.values().to(dtype)

    def _each(
        self,
        matrix: Callable[[torch.Tensor], torch.Tensor],
        vector: Callable[[torch.Tensor], torch.Tensor],
    ) -> Matrix:
        scale = None if self.scale is None else matrix(self.scale)
        row_scale = None if self.row_scale is None else vector(self.row_scale)
        return Matrix(self.format, self.width, matrix(self.data), scale, row_scale)


def empty_matrix(
    fmt: WeightFormat,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Matrix:
    """An uninitialised matrix.

    Args:
        fmt: its format.
        shape: [..., out, width].
        dtype: of a plain matrix.
        device: where it goes.

    Raises:
        ValueError: the format cannot store this width.
    """
    *lead, out, width = shape
    problem = width_problem(fmt, width)
    if problem:
        raise ValueError(problem)

    def make(last: int, kind: torch.dtype) -> torch.Tensor:
        return torch.empty((*lead, out, last), dtype=kind, device=device)

    if fmt is WeightFormat.PLAIN:
        return Matrix(fmt, width, empty_plain(shape, dtype, device))
    count = groups(width, fmt)
    if fmt is WeightFormat.MXFP8:
        return Matrix(fmt, width, make(width, torch.float8_e4m3fn), make(count, torch.uint8))
    data = make(width // 2, torch.uint8)
    if fmt is WeightFormat.MXFP4:
        return Matrix(fmt, width, data, make(count, torch.uint8))
    factors = torch.empty((*lead, out), dtype=torch.float32, device=device)
    return Matrix(fmt, width, data, make(count, torch.float8_e4m3fn), factors)


def empty_plain(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """An uninitialised weight [..., out, width]; on a CPU the transpose of memory [width, out].

    A product with few rows is faster that way, and the library changes kernels at fewer rows (see
    :mod:`gnomon.engine.row_tiles`).
    """
    if torch.device(device).type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    *lead, out, width = shape
    return torch.empty((*lead, width, out), dtype=dtype, device=device).mT


@dataclass(frozen=True)
class Linear:
    """A linear layer without bias whose output features come from matrices stacked by rows.

    Several parts, because fused projections may differ in format: MiniMax-M3-MXFP8 keeps the index
    projections in bf16 beside e4m3 q, k and v.

    Attributes:
        parts: neighbours differ in format.
    """

    parts: tuple[Matrix, ...]

    @property
    def num_rows(self) -> int:
        """Output features of all parts."""
        return sum(part.num_rows for part in self.parts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """X [R, width] to [R, out], in the dtype of x; a row's bits do not depend on the others."""
        outputs = [linear(x, part.dense(x.dtype)) for part in self.parts]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)


def empty_linear(
    parts: list[tuple[int, WeightFormat]],
    width: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Linear:
    """An uninitialised linear layer of (rows, format) parts; equal neighbours share a matrix."""
    runs: list[tuple[int, WeightFormat]] = []
    for rows, fmt in parts:
        if runs and runs[-1][1] is fmt:
            runs[-1] = (runs[-1][0] + rows, fmt)
        else:
            runs.append((rows, fmt))
    return Linear(tuple(empty_matrix(fmt, (rows, width), dtype, device) for rows, fmt in runs))


def split_rows(linear: Linear, sizes: list[int]) -> list[Matrix]:
    """Views of consecutive output features, none of which crosses a part."""
    views: list[Matrix] = []
    parts = iter(linear.parts)
    part, start = next(parts), 0
    for size in sizes:
        if start == part.num_rows:
            part, start = next(parts), 0
        views.append(part.rows(start, start + size))
        start += size
    return views
