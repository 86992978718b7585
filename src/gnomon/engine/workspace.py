"""Estimates of what a step and its captured graphs take on a GPU, per rank. No torch.

Both are counted from shapes, from above: activations of a layer as if none were reused within it.
They are reserves of a plan, not measurements.
"""

from __future__ import annotations

from gnomon.engine.models.config import ModelConfig
from gnomon.engine.models.sharding import kv_heads_of_rank
from gnomon.engine.options import EngineOptions

_FP32 = 4
_GRAPH_BYTES_A_LAYER = 64 << 10
_FIRST_CONTEXT_BUCKET = 1024


def workspace_bytes(config: ModelConfig, options: EngineOptions, element: int) -> int:
    """Activations of a step of ``max_num_batched_tokens`` rows, and logits of those that sample.

    Nothing here grows with the context: scores are reduced to a top-k list as they are made.

    Args:
        config: the model.
        options: token budget, requests and ranks.
        element: bytes of an activation.
    """
    rows, ranks = options.max_num_batched_tokens, options.tensor_parallel_size
    h, d = config.hidden_size, config.head_dim
    heads, kv = -(-config.num_heads // ranks), kv_heads_of_rank(config, ranks)
    projected = (heads + 2 * kv) * d + (kv + 1) * config.index_dim
    attention = 2 * projected + heads * d
    dense = 3 * -(-config.dense_intermediate_size // ranks)
    width = -(-config.expert_intermediate_size // ranks)
    shared = 3 * -(-config.shared_intermediate_size // ranks)
    chosen = config.num_experts_per_token
    experts = chosen * (h + 3 * width) * element + (chosen + 1) * h * _FP32 + shared * element
    a_row = 3 * h * element + max(attention * element, dense * element, experts)
    logits = options.max_num_seqs * -(-config.vocab_size // ranks) * 2 * _FP32
    return rows * a_row + logits


def graph_bytes(config: ModelConfig, options: EngineOptions) -> int:
    """Captured decode graphs: one for each power of two of requests and of context blocks."""
    longest = options.max_model_len or config.max_position_embeddings
    rows = options.max_num_seqs.bit_length() + 1
    contexts = max(longest // _FIRST_CONTEXT_BUCKET, 1).bit_length()
    return rows * contexts * config.num_layers * _GRAPH_BYTES_A_LAYER
