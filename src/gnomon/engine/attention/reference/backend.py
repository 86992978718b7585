"""The reference backend: PyTorch on any device, the specification other backends are held to."""

from __future__ import annotations

import torch

from gnomon.engine.attention.heads import HeadNorms, Queries, Rotation
from gnomon.engine.attention.reference.dense import dense
from gnomon.engine.attention.reference.project import project
from gnomon.engine.attention.reference.select import select
from gnomon.engine.attention.reference.sparse import sparse
from gnomon.engine.attention.reference.write import write
from gnomon.engine.attention.rows import RowBatch, Selection, SelectionRule
from gnomon.engine.cache.pools import LayerCache


class ReferenceBackend:
    """Implements :class:`gnomon.engine.attention.backend.AttentionBackend`; see there for shapes.

    Args:
        strict: refuse NaN and Inf on the way into the cache instead of storing the largest finite
            code and counting (see docs/design/cache-layouts.md).
    """

    name = "reference"

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict

    def project(
        self,
        cache: LayerCache,
        rows: RowBatch,
        projected: torch.Tensor,
        norms: HeadNorms,
        turn: Rotation,
        index_dtype: torch.dtype | None = None,
    ) -> Queries:
        """See :func:`gnomon.engine.attention.reference.project.project`."""
        return project(cache, rows, projected, norms, turn, index_dtype, strict=self.strict)

    def write(
        self,
        cache: LayerCache,
        rows: RowBatch,
        k: torch.Tensor,
        v: torch.Tensor,
        index_k: torch.Tensor | None,
    ) -> None:
        """See :func:`gnomon.engine.attention.reference.write.write`."""
        write(cache, rows, k, v, index_k, strict=self.strict)

    def select(
        self, cache: LayerCache, rows: RowBatch, index_q: torch.Tensor, rule: SelectionRule
    ) -> Selection:
        """See :func:`gnomon.engine.attention.reference.select.select`."""
        return select(cache, rows, index_q, rule)

    def sparse(
        self, cache: LayerCache, rows: RowBatch, q: torch.Tensor, selection: Selection
    ) -> torch.Tensor:
        """See :func:`gnomon.engine.attention.reference.sparse.sparse`."""
        return sparse(cache, rows, q, selection)

    def dense(
        self, cache: LayerCache, rows: RowBatch, q: torch.Tensor, window: int | None = None
    ) -> torch.Tensor:
        """See :func:`gnomon.engine.attention.reference.dense.dense`."""
        return dense(cache, rows, q, window)
