"""The weights of a text model, fused as the forward wants them, and where a file's tensors go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gnomon.engine.models.config import LayerConfig, ModelConfig


@dataclass(frozen=True)
class AttentionWeights:
    """One attention layer.

    Attributes:
        qkv: [(Hq + 2 Hk) D, h] as q, k, v rows; a layer that selects blocks itself has Hi Di index
            query rows and Di index key rows after them.
        o: [h, Hq D].
        q_norm, k_norm: [D], one vector for all heads.
        index_q_norm, index_k_norm: [Di], of layers that select blocks themselves.
    """

    qkv: torch.Tensor
    o: torch.Tensor
    q_norm: torch.Tensor
    k_norm: torch.Tensor
    index_q_norm: torch.Tensor | None
    index_k_norm: torch.Tensor | None


@dataclass(frozen=True)
class MlpWeights:
    """A SwiGLU MLP: gate_up [2 I, h] (gate rows, then up rows) and down [h, I]."""

    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class MoeWeights:
    """Routed experts and the shared one.

    Attributes:
        router: fp32 [E, h] whatever the compute dtype.
        bias: fp32 [E], added to the scores for the choice only.
        gate_up: [E, 2 I, h].
        down: [E, h, I].
        shared: the expert every token passes.
    """

    router: torch.Tensor
    bias: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    shared: MlpWeights


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer."""

    input_norm: torch.Tensor
    attention: AttentionWeights
    post_norm: torch.Tensor
    mlp: MlpWeights | MoeWeights


@dataclass(frozen=True)
class ModelWeights:
    """The text model: embed and lm_head [V, h], final norm [h]."""

    embed: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    lm_head: torch.Tensor


def empty_weights(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    """Uninitialised weights; norms and the router are fp32, the rest has the compute dtype."""

    def make(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def exact(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    h, d, di = config.hidden_size, config.head_dim, config.index_dim

    def mlp(width: int) -> MlpWeights:
        return MlpWeights(make(2 * width, h), make(h, width))

    def attention(layer: LayerConfig) -> AttentionWeights:
        width = (config.num_heads + 2 * config.num_kv_heads) * d
        if layer.owns_index:
            width += (config.num_index_heads + 1) * di
        return AttentionWeights(
            qkv=make(width, h),
            o=make(h, config.num_heads * d),
            q_norm=exact(d),
            k_norm=exact(d),
            index_q_norm=exact(di) if layer.owns_index else None,
            index_k_norm=exact(di) if layer.owns_index else None,
        )

    def feed_forward(layer: LayerConfig) -> MlpWeights | MoeWeights:
        if layer.mlp == "dense":
            return mlp(config.dense_intermediate_size)
        experts, width = config.num_experts, config.expert_intermediate_size
        return MoeWeights(
            router=exact(experts, h),
            bias=exact(experts),
            gate_up=make(experts, 2 * width, h),
            down=make(experts, h, width),
            shared=mlp(config.shared_intermediate_size),
        )

    layers = tuple(
        LayerWeights(exact(h), attention(layer), exact(h), feed_forward(layer))
        for layer in config.layers
    )
    return ModelWeights(make(config.vocab_size, h), layers, exact(h), make(config.vocab_size, h))


def released_targets(config: ModelConfig, weights: ModelWeights) -> dict[str, torch.Tensor]:
    """Released tensor name to the view it is copied into.

    The names are those of :func:`gnomon.engine.models.tensors.tensor_shapes`, less the index
    tensors of layers that reuse a selection.
    """
    targets = {
        "model.embed_tokens.weight": weights.embed,
        "model.norm.weight": weights.norm,
        "lm_head.weight": weights.lm_head,
    }
    for i, (layer, w) in enumerate(zip(config.layers, weights.layers, strict=True)):
        prefix = f"model.layers.{i}."
        targets[prefix + "input_layernorm.weight"] = w.input_norm
        targets[prefix + "post_attention_layernorm.weight"] = w.post_norm
        for name, target in _attention_targets(config, layer, w.attention):
            targets[f"{prefix}self_attn.{name}.weight"] = target
        if isinstance(w.mlp, MlpWeights):
            targets |= _mlp_targets(prefix + "mlp.", w.mlp)
        else:
            targets |= _moe_targets(prefix + "block_sparse_moe.", w.mlp)
    return targets


def _attention_targets(
    config: ModelConfig, layer: LayerConfig, w: AttentionWeights
) -> Iterator[tuple[str, torch.Tensor]]:
    kv = config.num_kv_heads * config.head_dim
    widths = [config.num_heads * config.head_dim, kv, kv]
    names = ["q_proj", "k_proj", "v_proj"]
    if layer.owns_index:
        widths += [config.num_index_heads * config.index_dim, config.index_dim]
        names += ["index_q_proj", "index_k_proj"]
    yield from zip(names, w.qkv.split(widths), strict=True)
    yield from (("o_proj", w.o), ("q_norm", w.q_norm), ("k_norm", w.k_norm))
    if w.index_q_norm is not None and w.index_k_norm is not None:
        yield from (("index_q_norm", w.index_q_norm), ("index_k_norm", w.index_k_norm))


def _mlp_targets(prefix: str, w: MlpWeights) -> dict[str, torch.Tensor]:
    gate, up = w.gate_up.chunk(2)
    return {
        prefix + "gate_proj.weight": gate,
        prefix + "up_proj.weight": up,
        prefix + "down_proj.weight": w.down,
    }


def _moe_targets(prefix: str, w: MoeWeights) -> dict[str, torch.Tensor]:
    targets = {prefix + "gate.weight": w.router, prefix + "e_score_correction_bias": w.bias}
    for expert in range(w.gate_up.shape[0]):
        gate, up = w.gate_up[expert].chunk(2)
        targets[f"{prefix}experts.{expert}.w1.weight"] = gate
        targets[f"{prefix}experts.{expert}.w3.weight"] = up
        targets[f"{prefix}experts.{expert}.w2.weight"] = w.down[expert]
    return targets | _mlp_targets(prefix + "shared_experts.", w.shared)
