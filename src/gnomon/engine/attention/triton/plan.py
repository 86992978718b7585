"""How the rows of a step are cut into tiles: read from the batch once, not once a layer."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from itertools import groupby

import torch

from gnomon.engine.attention.rows import RowBatch


@dataclass(frozen=True)
class RowTiles:
    """Runs of consecutive rows that belong to one request.

    Which rows share a request is structure: it holds for every replay of a captured step. Positions
    and page tables are not; kernels read those on the device. A row that turned into padding since
    is recognised there too.

    Attributes:
        bounds: int32 [T, 2], first row and number of rows.
        count: T.
        widest: most rows of a tile; 0 if there are none.
        rows: rows in tiles; the others are padding.
    """

    bounds: torch.Tensor
    count: int
    widest: int
    rows: int


#: Height of tiles; bounds of the number of rows of their requests.
_Kind = tuple[int, int, int | None]


class Plans:
    """Tiles of the batches that are alive, by batch and tile height."""

    def __init__(self) -> None:
        self._of_batch: dict[int, tuple[weakref.ref[RowBatch], dict[_Kind, RowTiles]]] = {}

    def tiles(
        self, rows: RowBatch, height: int, *, longer_than: int = 0, up_to: int | None = None
    ) -> RowTiles:
        """Tiles of at most ``height`` rows; the first call for a batch waits for the device.

        Of requests alone that have more than ``longer_than`` rows, and at most ``up_to``.
        """
        key = id(rows)
        known = self._of_batch.get(key)
        if known is None or known[0]() is not rows:
            alive = weakref.ref(rows, lambda _: self._of_batch.pop(key, None))
            known = self._of_batch[key] = (alive, {})
        kind = (height, longer_than, up_to)
        if kind not in known[1]:
            known[1][kind] = cut(rows, *kind)
        return known[1][kind]


def cut(rows: RowBatch, height: int, longer_than: int = 0, up_to: int | None = None) -> RowTiles:
    """Cut the live rows of a batch into tiles of at most ``height`` rows of one request."""
    bounds: list[tuple[int, int]] = []
    first = 0
    for request, run in groupby(rows.request_of_row.tolist()):
        count = len(list(run))
        stop = first + count
        if request >= 0 and count > longer_than and (up_to is None or count <= up_to):
            bounds += [(r, min(height, stop - r)) for r in range(first, stop, height)]
        first = stop
    table = torch.tensor(bounds, dtype=torch.int32).view(-1, 2).to(rows.positions.device)
    counts = [n for _, n in bounds]
    return RowTiles(table, len(bounds), max(counts, default=0), sum(counts))


def unselected(in_tiles: int, shape: tuple[int, int, int], device: torch.device) -> torch.Tensor:
    """Where a selection of ``shape`` goes, int64: all -1 if some rows are in no tile."""
    if in_tiles == shape[0]:
        return torch.empty(shape, dtype=torch.int64, device=device)
    return torch.full(shape, -1, dtype=torch.int64, device=device)
