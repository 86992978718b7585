"""Matrix products in which a row's bits do not depend on the rows beside it.

A matrix library picks its kernel, and with it the order in which products are added up, by the
number of rows. So a token's logits would depend on how many tokens happen to share its step. Here
rows go through the library in tiles of two fixed sizes only, padded with zeros: a large one, and
the smallest one that was seen to give the same bits as the large one for matrices of that shape.

The promise is for CPUs. On other devices rows are multiplied as they come.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

LARGE = 128
_SMALLER = (4, 8, 16, 32, 64)
_BATCHES = (16, 4)  # sizes of batched calls over small tiles
_MOST_RANDOM = 1 << 24  # elements of a matrix made up for the comparison


@dataclass(frozen=True)
class Tiling:
    """How rows are cut for one shape of matrix.

    Attributes:
        small: rows of the small tile; 0 where nothing is promised and nothing is cut.
        batches: numbers of small tiles that one batched call multiplies, each with its own matrix,
            without a change of bits; largest first.
    """

    small: int
    batches: tuple[int, ...]


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """X [R, K] times the transpose of weight [N, K]: [R, N]."""
    return multiply(x, weight.t())


def multiply(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Rows [R, K] times matrix [K, N]: [R, N]."""
    tiling = tiling_for(matrix)
    count = rows.shape[0]
    if 0 < count < tiling.small:
        return _padded(rows, tiling.small).mm(matrix)[:count]
    rows = rows.contiguous()
    out = rows.new_empty((count, matrix.shape[1]))
    _multiply_into(out, rows, matrix, tiling)
    return out


def multiply_groups(
    rows: torch.Tensor,
    bounds: Sequence[int],
    matrices: torch.Tensor | Callable[[int], torch.Tensor],
    out: torch.Tensor,
) -> None:
    """Multiply group g of the rows, ``bounds[g]`` to ``bounds[g + 1]``, with its own matrix.

    Args:
        rows: [R, K].
        bounds: G + 1 ascending numbers from 0 to R.
        matrices: [G, K, N]; or what gives the matrix [K, N] of a group, asked only if the group
            has rows. All alike in dtype and memory order.
        out: [R, N], contiguous; filled.
    """
    groups = [g for g in range(len(bounds) - 1) if bounds[g + 1] > bounds[g]]
    if not groups:
        return
    matrix_of: Callable[[int], torch.Tensor]
    if isinstance(matrices, torch.Tensor):
        tiles = tiling_for(matrices[0])
        counts = [bounds[g + 1] - bounds[g] for g in groups]
        if tiles.batches and len(groups) == len(matrices) and max(counts) <= tiles.small:
            _multiply_few(rows, counts, matrices, out, tiles)
            return
        matrix_of = matrices.__getitem__
    else:
        matrix_of = matrices
    rows = rows.contiguous()
    tiling: Tiling | None = None
    for group in groups:
        matrix = matrix_of(group)
        tiling = tiling or tiling_for(matrix)
        part = slice(bounds[group], bounds[group + 1])
        _multiply_into(out[part], rows[part], matrix, tiling)


def tiling_for(matrix: torch.Tensor) -> Tiling:
    """The tiling for matrices of this shape [K, N], dtype and memory order."""
    if matrix.device.type != "cpu":
        return _UNCUT
    inner, width = matrix.shape
    return _compared(inner, width, matrix.dtype, matrix.stride(0) == 1, torch.get_num_threads())


_UNCUT = Tiling(small=0, batches=())
_ONE_BY_ONE = Tiling(small=1, batches=())


def _multiply_into(
    out: torch.Tensor, rows: torch.Tensor, matrix: torch.Tensor, tiling: Tiling
) -> None:
    """Multiply rows [R, K] with matrix [K, N] into ``out`` [R, N]: large tiles, then small ones."""
    count, tile = rows.shape[0], tiling.small
    if tile == 0 or count == tile:
        torch.mm(rows, matrix, out=out)
        return
    large = count // LARGE * LARGE if tile > 1 else 0
    whole = count // tile * tile
    for a in range(0, large, LARGE):
        torch.mm(rows[a : a + LARGE], matrix, out=out[a : a + LARGE])
    for a in range(large, whole, tile):
        torch.mm(rows[a : a + tile], matrix, out=out[a : a + tile])
    if whole < count:
        out[whole:] = _padded(rows[whole:], tile).mm(matrix)[: count - whole]


def _multiply_few(
    rows: torch.Tensor,
    counts: Sequence[int],
    matrices: torch.Tensor,
    out: torch.Tensor,
    tiling: Tiling,
) -> None:
    """Groups of at most a small tile each, none empty, in as few calls as keep the bits."""
    groups, tile = len(counts), tiling.small
    inner, width = matrices.shape[1:]
    equal = counts[0] if min(counts) == max(counts) else 0
    place = None
    if equal:
        left = _padded(rows.view(groups, equal, inner), tile)
    else:
        starts = np.cumsum([0, *counts[:-1]])
        shift = np.repeat(np.arange(groups) * tile - starts, counts)
        place = torch.from_numpy(np.arange(len(rows)) + shift).to(rows.device)
        left = rows.new_zeros((groups * tile, inner)).index_copy_(0, place, rows)
        left = left.view(groups, tile, inner)
    products = left.new_empty((groups, tile, width))
    at = 0
    for size in tiling.batches:
        while groups - at >= size:
            torch.bmm(left[at : at + size], matrices[at : at + size], out=products[at : at + size])
            at += size
    for one in range(at, groups):
        torch.mm(left[one], matrices[one], out=products[one])
    if place is None:
        out.view(groups, equal, width).copy_(products[:, :equal])
    else:
        torch.index_select(products.view(-1, width), 0, place, out=out)


def _padded(rows: torch.Tensor, tile: int) -> torch.Tensor:
    """Rows [..., R, K] and zeros behind them: [..., tile, K]."""
    *lead, count, inner = rows.shape
    if count == tile:
        return rows.contiguous()
    zeros = _zeros(tile - count, inner, rows.dtype)
    return torch.cat((rows, zeros.expand(*lead, -1, -1) if lead else zeros), dim=-2)


@functools.lru_cache(maxsize=256)
def _zeros(count: int, inner: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros((count, inner), dtype=dtype)


@functools.cache
def _compared(inner: int, width: int, dtype: torch.dtype, transposed: bool, threads: int) -> Tiling:
    """Find the tiling by comparing bits.

    Random rows times a random matrix, in two orders of the rows: sums that are added in another
    order differ in some of thousands of results. ``threads`` only names what was compared.
    """
    # A wider matrix is cut: the library splits width into panels; inner sets the order of sums.
    width = max(1, min(width, _MOST_RANDOM // inner))
    source = torch.Generator().manual_seed(0)
    most = max(_BATCHES)
    right = torch.randn((width, inner), generator=source).to(dtype).t()
    right = right if transposed else right.contiguous()
    rows = torch.randn((LARGE, inner), generator=source).to(dtype)
    orders = (rows, rows.flip(0))
    expected = [torch.mm(order, right) for order in orders]
    if not torch.equal(expected[0], expected[1].flip(0)):
        return _ONE_BY_ONE  # a row's bits depend on its place: then no row may share a call
    small = next(
        tile for tile in (*_SMALLER, LARGE)
        if all(torch.equal(_tiled(order, right, tile), wanted)
               for order, wanted in zip(orders, expected, strict=True))
    )  # fmt: skip
    if most * inner * width > _MOST_RANDOM:
        return Tiling(small, ())
    stack = torch.randn((most, width, inner), generator=source).to(dtype).mT
    stack = stack if transposed else stack.contiguous()
    left = torch.randn((most, small, inner), generator=source).to(dtype)
    one_by_one = torch.stack([torch.mm(a, b) for a, b in zip(left, stack, strict=True)])
    batches = tuple(
        size for size in _BATCHES
        if torch.equal(torch.bmm(left[:size], stack[:size]), one_by_one[:size])
    )  # fmt: skip
    return Tiling(small, batches)


def _tiled(rows: torch.Tensor, matrix: torch.Tensor, tile: int) -> torch.Tensor:
    return torch.cat([torch.mm(part, matrix) for part in rows.split(tile)])
