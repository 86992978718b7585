"""The attention operations every backend implements, with one signature each."""

from __future__ import annotations

from typing import Protocol

import torch

from gnomon.engine.attention.heads import HeadNorms, Queries, Rotation
from gnomon.engine.attention.rows import RowBatch, Selection, SelectionRule
from gnomon.engine.cache.pools import LayerCache


class AttentionBackend(Protocol):
    """Project, write, select, sparse and dense attention over paged caches.

    Dims: R rows, Hq query heads, Hk KV heads, Hi index heads (= Hk), D head dim, Di index dim.
    Query, key and value tensors have the model's compute dtype; outputs have the query's.
    """

    name: str

    def project(
        self,
        cache: LayerCache,
        rows: RowBatch,
        projected: torch.Tensor,
        norms: HeadNorms,
        turn: Rotation,
        index_dtype: torch.dtype | None = None,
    ) -> Queries:
        """Norm and rotate the heads of projected [R, columns], store keys and values.

        Columns are q, k, v and, if the layer has an index branch, index q and index k. Index
        queries come in ``index_dtype`` (float8_e4m3fn: nearest, saturating), by default the
        projection's dtype, like q.
        """
        ...

    def write(
        self,
        cache: LayerCache,
        rows: RowBatch,
        k: torch.Tensor,
        v: torch.Tensor,
        index_k: torch.Tensor | None,
    ) -> None:
        """Store k, v [R, Hk, D] and index_k [R, Di] (None: the layer owns no index page)."""
        ...

    def select(
        self, cache: LayerCache, rows: RowBatch, index_q: torch.Tensor, rule: SelectionRule
    ) -> Selection:
        """Choose blocks for index_q [R, Hi, Di] by the rule of engine decision 4."""
        ...

    def sparse(
        self, cache: LayerCache, rows: RowBatch, q: torch.Tensor, selection: Selection
    ) -> torch.Tensor:
        """Attend q [R, Hq, D] causally to the selected blocks; index head h serves KV head h."""
        ...

    def dense(
        self, cache: LayerCache, rows: RowBatch, q: torch.Tensor, window: int | None = None
    ) -> torch.Tensor:
        """Attend q [R, Hq, D] to all up to ``rows.seen_to``, or from ``window`` tokens back."""
        ...
