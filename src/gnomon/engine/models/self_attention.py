"""One attention layer: projections, per-head norm, rope, cache write, selection, attention."""

from __future__ import annotations

import torch

from gnomon.engine.attention.backend import AttentionBackend
from gnomon.engine.attention.rows import RowBatch, Selection, SelectionRule
from gnomon.engine.cache.pools import LayerCache
from gnomon.engine.models.config import LayerConfig, ModelConfig
from gnomon.engine.models.layers import Rotation, gemma_norm_fp32, rotate
from gnomon.engine.models.weights import AttentionWeights


class SelfAttention:
    """The attention of one layer, dense or sparse, over a paged cache."""

    def __init__(self, config: ModelConfig, layer: LayerConfig, weights: AttentionWeights) -> None:
        self.layer = layer
        self.weights = weights
        self.eps = config.rms_norm_eps
        self.dims = (config.head_dim, config.index_dim)
        self.rule = SelectionRule(config.topk_blocks, config.init_blocks, config.local_blocks)
        kv = config.num_kv_heads * config.head_dim
        self.widths = [config.num_heads * config.head_dim, kv, kv]
        if layer.owns_index:
            self.widths += [config.num_index_heads * config.index_dim, config.index_dim]

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
        w, (d, di) = self.weights, self.dims
        q, k, v, *index = w.qkv(x).split(self.widths, dim=-1)
        q = self._norm_rope(q, d, w.q_norm, turn)
        k = self._norm_rope(k, d, w.k_norm, turn)
        index_q, index_k = None, None
        if w.index_q_norm is not None and w.index_k_norm is not None:
            index_q = self._norm_rope(index[0], di, w.index_q_norm, turn)
            index_k = self._norm_rope(index[1], di, w.index_k_norm, turn)[:, 0]
        backend.write(cache, rows, k, v.unflatten(-1, (-1, d)), index_k)
        if self.layer.attention == "dense":
            out, selection = backend.dense(cache, rows, q), None
        else:
            selection = shared
            if index_q is not None:
                selection = backend.select(cache, rows, index_q, self.rule)
            if selection is None:
                raise RuntimeError("a layer reuses a selection before any layer computed one")
            out = backend.sparse(cache, rows, q, selection)
        return w.o(out.flatten(1)), selection

    def _norm_rope(
        self, x: torch.Tensor, dim: int, weight: torch.Tensor, turn: Rotation
    ) -> torch.Tensor:
        """[R, heads * dim] to [R, heads, dim]: norm, then rope, in fp32, rounded once."""
        heads = x.unflatten(-1, (-1, dim))
        return rotate(gemma_norm_fp32(heads, weight, self.eps), turn).to(x.dtype)
