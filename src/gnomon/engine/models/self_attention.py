"""One attention layer: projections, per-head norm, rope, cache write, selection, attention."""

from __future__ import annotations

import torch

from gnomon.engine.attention.backend import AttentionBackend
from gnomon.engine.attention.heads import HeadNorms, Rotation
from gnomon.engine.attention.rows import RowBatch, Selection, SelectionRule
from gnomon.engine.cache.pools import LayerCache
from gnomon.engine.models.config import LayerConfig, ModelConfig
from gnomon.engine.models.weights import AttentionWeights


class SelfAttention:
    """The attention of one layer, dense or sparse, over a paged cache."""

    def __init__(self, config: ModelConfig, layer: LayerConfig, weights: AttentionWeights) -> None:
        self.layer = layer
        self.weights = weights
        self.rule = SelectionRule(config.topk_blocks, config.init_blocks, config.local_blocks)
        self.norms = HeadNorms(
            weights.q_norm,
            weights.k_norm,
            weights.index_q_norm,
            weights.index_k_norm,
            config.rms_norm_eps,
        )

    def __call__(
        self,
        x: torch.Tensor,
        turn: Rotation,
        rows: RowBatch,
        cache: LayerCache,
        backend: AttentionBackend,
        shared: Selection | None,
    ) -> tuple[torch.Tensor, Selection | None]:
        """Attend from x [R, h], the layer's normed input.

        Args:
            x: normed input, also of the index branch.
            turn: angles of the rows, shared by the main and the index branch.
            rows: the step's rows.
            cache: this layer's pages.
            backend: implementation of the four attention operations.
            shared: selection of the last layer that computed one.

        Returns:
            Output [R, h], and the selection this layer attended to (None: dense).
        """
        w = self.weights
        made = backend.project(cache, rows, w.qkv(x), self.norms, turn)
        if self.layer.attention == "dense":
            out, selection = backend.dense(cache, rows, made.q), None
        else:
            selection = shared
            if made.index_q is not None:
                selection = backend.select(cache, rows, made.index_q, self.rule)
            if selection is None:
                raise RuntimeError("a layer reuses a selection before any layer computed one")
            out = backend.sparse(cache, rows, made.q, selection)
        return w.o(out.flatten(1)), selection
