"""The weights of a text model, fused as the forward wants them, and where a file's tensors go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gnomon.engine.models.config import LayerConfig, ModelConfig
from gnomon.engine.models.matrix import (
    Linear,
    Matrix,
    empty_linear,
    empty_matrix,
    empty_plain,
    split_rows,
)
from gnomon.engine.models.weight_formats import Formats, group_of, plain_formats
from gnomon.engine.options import LoadFormat, WeightFormat


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

    qkv: Linear
    o: Linear
    q_norm: torch.Tensor
    k_norm: torch.Tensor
    index_q_norm: torch.Tensor | None
    index_k_norm: torch.Tensor | None


@dataclass(frozen=True)
class MlpWeights:
    """A SwiGLU MLP: gate_up [2 I, h] (gate rows, then up rows) and down [h, I]."""

    gate_up: Linear
    down: Linear


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
    gate_up: Matrix
    down: Matrix
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


def empty_weights(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    formats: Formats = plain_formats,
) -> ModelWeights:
    """Uninitialised weights; norms and the router are fp32, plain matrices have the compute dtype.

    Args:
        config: the model.
        dtype: compute dtype.
        device: where the weights go.
        formats: of every matrix. The experts of a layer have one format for w1 and w3 and one for
            w2; :func:`gnomon.engine.models.stored.locate` refuses files in which they have more.
    """

    def exact(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    h, d, di = config.hidden_size, config.head_dim, config.index_dim

    def linear(prefix: str, width: int, parts: list[tuple[str, int]]) -> Linear:
        rows = [(size, formats(f"{prefix}{name}.weight")) for name, size in parts]
        return empty_linear(rows, width, dtype, device)

    def mlp(prefix: str, width: int) -> MlpWeights:
        return MlpWeights(
            linear(prefix, h, [("gate_proj", width), ("up_proj", width)]),
            linear(prefix, width, [("down_proj", h)]),
        )

    def attention(prefix: str, layer: LayerConfig) -> AttentionWeights:
        return AttentionWeights(
            qkv=linear(prefix, h, _qkv_parts(config, layer)),
            o=linear(prefix, config.num_heads * d, [("o_proj", h)]),
            q_norm=exact(d),
            k_norm=exact(d),
            index_q_norm=exact(di) if layer.owns_index else None,
            index_k_norm=exact(di) if layer.owns_index else None,
        )

    def feed_forward(prefix: str, layer: LayerConfig) -> MlpWeights | MoeWeights:
        if layer.mlp == "dense":
            return mlp(prefix + "mlp.", config.dense_intermediate_size)
        experts, width = config.num_experts, config.expert_intermediate_size
        prefix += "block_sparse_moe."
        first = prefix + "experts.0."
        return MoeWeights(
            router=empty_plain((experts, h), torch.float32, device),
            bias=exact(experts),
            gate_up=empty_matrix(
                formats(first + "w1.weight"), (experts, 2 * width, h), dtype, device
            ),
            down=empty_matrix(formats(first + "w2.weight"), (experts, h, width), dtype, device),
            shared=mlp(prefix + "shared_experts.", config.shared_intermediate_size),
        )

    layers = tuple(
        LayerWeights(
            exact(h),
            attention(f"model.layers.{i}.self_attn.", layer),
            exact(h),
            feed_forward(f"model.layers.{i}.", layer),
        )
        for i, layer in enumerate(config.layers)
    )
    embed = torch.empty((config.vocab_size, h), dtype=dtype, device=device)
    head = empty_plain((config.vocab_size, h), dtype, device)
    return ModelWeights(embed, layers, exact(h), head)


def _qkv_parts(config: ModelConfig, layer: LayerConfig) -> list[tuple[str, int]]:
    """Projections of a layer's normed input and their output features, in the order of ``qkv``."""
    kv = config.num_kv_heads * config.head_dim
    parts = [("q_proj", config.num_heads * config.head_dim), ("k_proj", kv), ("v_proj", kv)]
    if layer.owns_index:
        parts += [
            ("index_q_proj", config.num_index_heads * config.index_dim),
            ("index_k_proj", config.index_dim),
        ]
    return parts


def released_targets(
    config: ModelConfig, weights: ModelWeights
) -> dict[str, torch.Tensor | Matrix]:
    """Released tensor name to the view it is copied into.

    The names are those of :func:`gnomon.engine.models.tensors.tensor_shapes`, less the index
    tensors of layers that reuse a selection. Projections and experts are matrices, packed or not;
    everything else is a plain tensor.
    """
    targets: dict[str, torch.Tensor | Matrix] = {
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
) -> Iterator[tuple[str, torch.Tensor | Matrix]]:
    parts = _qkv_parts(config, layer)
    views = split_rows(w.qkv, [rows for _, rows in parts])
    yield from zip((name for name, _ in parts), views, strict=True)
    yield from (("o_proj", w.o.parts[0]), ("q_norm", w.q_norm), ("k_norm", w.k_norm))
    if w.index_q_norm is not None and w.index_k_norm is not None:
        yield from (("index_q_norm", w.index_q_norm), ("index_k_norm", w.index_k_norm))


def _mlp_targets(prefix: str, w: MlpWeights) -> dict[str, Matrix]:
    half = w.gate_up.num_rows // 2
    gate, up = split_rows(w.gate_up, [half, half])
    return {
        prefix + "gate_proj.weight": gate,
        prefix + "up_proj.weight": up,
        prefix + "down_proj.weight": w.down.parts[0],
    }


def _moe_targets(prefix: str, w: MoeWeights) -> dict[str, torch.Tensor | Matrix]:
    targets: dict[str, torch.Tensor | Matrix] = {
        prefix + "gate.weight": w.router,
        prefix + "e_score_correction_bias": w.bias,
    }
    half = w.gate_up.num_rows // 2
    for expert in range(w.gate_up.data.shape[0]):
        both = w.gate_up[expert]
        targets[f"{prefix}experts.{expert}.w1.weight"] = both.rows(0, half)
        targets[f"{prefix}experts.{expert}.w3.weight"] = both.rows(half, 2 * half)
        targets[f"{prefix}experts.{expert}.w2.weight"] = w.down[expert]
    return targets | _mlp_targets(prefix + "shared_experts.", w.shared)


def weight_summary(
    config: ModelConfig, weights: ModelWeights, load_format: LoadFormat = LoadFormat.AUTO
) -> dict[str, str]:
    """Formats that each group of matrices is really held in, for attestation."""
    found: dict[str, set[str]] = {}
    for name, target in released_targets(config, weights).items():
        if isinstance(target, Matrix):
            plain = str(target.data.dtype).removeprefix("torch.")
            fmt = plain if target.format is WeightFormat.PLAIN else target.format.value
            found.setdefault(group_of(name).value, set()).add(fmt)
    summary = {group: "+".join(sorted(formats)) for group, formats in sorted(found.items())}
    return summary | ({"values": "random"} if load_format is LoadFormat.DUMMY else {})
