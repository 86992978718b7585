"""The nano preset: the smallest model whose pages and heads have the real sizes.

Head dim, index dim and block size are those of M3 and M3.1, every layer is sparse (as in M3.1)
and routed, and top-4 of 128-token blocks drops blocks beyond 512 tokens. Width and depth are cut
until one CPU core serves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NUM_LAYERS = 2


def nano_config(vocab_size: int, special_ids: Mapping[str, int]) -> dict[str, Any]:
    """The content of config.json, in the released spelling.

    Args:
        vocab_size: entries of the tokenizer.
        special_ids: ids of the tokens ``bos``, ``eos``, ``image`` and ``video``.
    """
    every_layer = [1] * _NUM_LAYERS
    text = {
        "architectures": ["MiniMaxM3SparseForCausalLM"],
        "vocab_size": vocab_size,
        "hidden_size": 256,
        "num_hidden_layers": _NUM_LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "intermediate_size": 128,
        "dense_intermediate_size": 512,
        "shared_intermediate_size": 128,
        "n_shared_experts": 1,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "routed_scaling_factor": 2.0,
        "moe_layer_freq": every_layer,
        "hidden_act": "swigluoai",
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "rms_norm_eps": 1e-6,
        "use_gemma_norm": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_head",
        "attention_output_gate": False,
        "rope_theta": 5000000,
        "rotary_dim": 64,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 32768,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_num_index_heads": 2,
            "sparse_index_dim": 128,
            "sparse_block_size": 128,
            "sparse_topk_blocks": 4,
            "sparse_init_block": 0,
            "sparse_local_block": 1,
            "sparse_score_type": "max",
            "sparse_attention_freq": every_layer,
            "sparse_disable_index_value": every_layer,
        },
        "bos_token_id": special_ids["bos"],
        "eos_token_id": special_ids["eos"],
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    return {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "model_type": "minimax_m3_vl",
        "image_token_index": special_ids["image"],
        "video_token_index": special_ids["video"],
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "text_config": text,
    }
