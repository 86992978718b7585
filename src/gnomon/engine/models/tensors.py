"""Names and shapes of a text model's tensors in the released checkpoint layout.

The layout is what ``MiniMaxM3SparseForConditionalGeneration`` saves; names here leave out the
``language_model.`` prefix. Loader, generator and tests all read this one table.
"""

from __future__ import annotations

from collections.abc import Iterator

from gnomon.engine.models.config import LayerConfig, ModelConfig

Shape = tuple[int, ...]


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor of the model, name to shape, in layer order.

    A layer that reuses a selection keeps its index tensors: the file has them, the model does not
    read them.
    """
    h, v = config.hidden_size, config.vocab_size
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (v, h)}
    for i, layer in enumerate(config.layers):
        prefix = f"model.layers.{i}."
        shapes |= {prefix + name: shape for name, shape in _layer(config, layer)}
    shapes["model.norm.weight"] = (h,)
    shapes["lm_head.weight"] = (v, h)
    return shapes


def _layer(config: ModelConfig, layer: LayerConfig) -> Iterator[tuple[str, Shape]]:
    h = config.hidden_size
    yield "input_layernorm.weight", (h,)
    yield from _attention(config, layer)
    yield "post_attention_layernorm.weight", (h,)
    if layer.mlp == "dense":
        yield from _mlp("mlp.", h, config.dense_intermediate_size)
        return
    moe, width = "block_sparse_moe.", config.expert_intermediate_size
    yield moe + "gate.weight", (config.num_experts, h)
    yield moe + "e_score_correction_bias", (config.num_experts,)
    for expert in range(config.num_experts):
        yield f"{moe}experts.{expert}.w1.weight", (width, h)
        yield f"{moe}experts.{expert}.w3.weight", (width, h)
        yield f"{moe}experts.{expert}.w2.weight", (h, width)
    yield from _mlp(moe + "shared_experts.", h, config.shared_intermediate_size)


def _attention(config: ModelConfig, layer: LayerConfig) -> Iterator[tuple[str, Shape]]:
    h, d, prefix = config.hidden_size, config.head_dim, "self_attn."
    yield prefix + "q_proj.weight", (config.num_heads * d, h)
    yield prefix + "k_proj.weight", (config.num_kv_heads * d, h)
    yield prefix + "v_proj.weight", (config.num_kv_heads * d, h)
    yield prefix + "o_proj.weight", (h, config.num_heads * d)
    yield prefix + "q_norm.weight", (d,)
    yield prefix + "k_norm.weight", (d,)
    if layer.attention == "sparse":
        di = config.index_dim
        yield prefix + "index_q_proj.weight", (config.num_index_heads * di, h)
        yield prefix + "index_k_proj.weight", (di, h)
        yield prefix + "index_q_norm.weight", (di,)
        yield prefix + "index_k_norm.weight", (di,)


def _mlp(prefix: str, hidden: int, width: int) -> Iterator[tuple[str, Shape]]:
    yield prefix + "gate_proj.weight", (width, hidden)
    yield prefix + "up_proj.weight", (width, hidden)
    yield prefix + "down_proj.weight", (hidden, width)
