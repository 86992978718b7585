"""The MiniMax-M3 text model: embedding, pre-norm decoder layers, final norm, untied head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from gnomon.engine.attention.backend import AttentionBackend
from gnomon.engine.attention.heads import rotation
from gnomon.engine.attention.rows import RowBatch, Selection
from gnomon.engine.cache.pools import LayerCache
from gnomon.engine.models.config import ModelConfig
from gnomon.engine.models.layers import SwiGluOai, gemma_norm
from gnomon.engine.models.moe import mlp, moe
from gnomon.engine.models.self_attention import SelfAttention
from gnomon.engine.models.weights import MlpWeights, ModelWeights, MoeWeights
from gnomon.engine.row_tiles import linear


@dataclass(frozen=True)
class ModelOutput:
    """What one forward gives.

    Attributes:
        hidden: [R, h], after the final norm; meaningless in pad rows.
        selections: for each layer the blocks it attended to, None for dense layers.
    """

    hidden: torch.Tensor
    selections: tuple[Selection | None, ...]


class MiniMaxM3:
    """The text model of MiniMax-M3 and M3.1 (formulas: docs/design/model.md)."""

    def __init__(self, config: ModelConfig, weights: ModelWeights) -> None:
        self.config = config
        self.weights = weights
        self.act = SwiGluOai(config.swiglu_alpha, config.swiglu_limit, config.swiglu_beta)
        self.attention = tuple(
            SelfAttention(config, layer, w.attention)
            for layer, w in zip(config.layers, weights.layers, strict=True)
        )

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights and activations."""
        return self.weights.embed.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.embed.device

    def forward(
        self,
        token_ids: torch.Tensor,
        rows: RowBatch,
        caches: Sequence[LayerCache],
        backend: AttentionBackend,
    ) -> ModelOutput:
        """Run the rows of one step and write their K, V and index keys.

        Args:
            token_ids: int64 [R]; any value in pad rows.
            rows: where each row stands.
            caches: one a layer.
            backend: implementation of the attention operations.
        """
        eps = self.config.rms_norm_eps
        turn = rotation(rows.positions, self.config.rope_theta, self.config.rotary_dim)
        ids = torch.where(rows.positions >= 0, token_ids, 0)
        stream = F.embedding(ids, self.weights.embed)
        shared: Selection | None = None
        selections: list[Selection | None] = []
        for attention, w, cache in zip(self.attention, self.weights.layers, caches, strict=True):
            x = gemma_norm(stream, w.input_norm, eps)
            out, selection = attention(x, turn, rows, cache, backend, shared)
            shared = selection or shared
            selections.append(selection)
            stream = stream + out
            stream = stream + self._feed_forward(gemma_norm(stream, w.post_norm, eps), w.mlp)
        return ModelOutput(gemma_norm(stream, self.weights.norm, eps), tuple(selections))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Vocabulary logits, fp32 [S, V], of rows of :attr:`ModelOutput.hidden` [S, h]."""
        return linear(hidden, self.weights.lm_head).float()

    def _feed_forward(self, x: torch.Tensor, w: MlpWeights | MoeWeights) -> torch.Tensor:
        if isinstance(w, MlpWeights):
            return mlp(x, w, self.act)
        config = self.config
        return moe(x, w, config.num_experts_per_token, config.routed_scaling_factor, self.act)
