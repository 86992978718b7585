"""One tiny model's config.json in both spellings."""

from __future__ import annotations

from typing import Any


def released() -> dict[str, Any]:
    """As the released checkpoints spell it: nested, with a vision tower around it."""
    return {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "model_type": "minimax_m3_vl",
        "vision_config": {"hidden_size": 32},
        "text_config": {
            "model_type": "minimax_m2",
            "vocab_size": 512,
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "intermediate_size": 48,
            "dense_intermediate_size": 96,
            "shared_intermediate_size": 48,
            "n_shared_experts": 1,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "routed_scaling_factor": 2.0,
            "moe_layer_freq": [0, 1, 1, 1],
            "hidden_act": "swigluoai",
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
            "rms_norm_eps": 1e-6,
            "use_gemma_norm": True,
            "qk_norm_type": "per_head",
            "attention_output_gate": False,
            "rope_theta": 5000000,
            "rotary_dim": 16,
            "partial_rotary_factor": 0.5,
            "max_position_embeddings": 4096,
            "num_mtp_modules": 7,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "dtype": "bfloat16",
            "sparse_attention_config": {
                "use_sparse_attention": True,
                "sparse_num_index_heads": 2,
                "sparse_index_dim": 32,
                "sparse_block_size": 16,
                "sparse_topk_blocks": 4,
                "sparse_init_block": 0,
                "sparse_local_block": 1,
                "sparse_score_type": "max",
                "sparse_attention_freq": [0, 1, 1, 1],
                "sparse_disable_index_value": [0, 1, 1, 1],
            },
        },
    }


def transformers() -> dict[str, Any]:
    """As transformers' text-only class saves the same model."""
    return {
        "architectures": ["MiniMaxM3VLForCausalLM"],
        "model_type": "minimax_m3_vl_text",
        "vocab_size": 512,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 48,
        "dense_intermediate_size": 96,
        "shared_intermediate_size": 48,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 2.0,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "hidden_act": "silu",
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5000000.0,
            "partial_rotary_factor": 0.5,
        },
        "rotary_dim": 16,
        "max_position_embeddings": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "layer_types": ["full_attention"] + ["minimax_m3_sparse"] * 3,
        "index_n_heads": 2,
        "index_head_dim": 32,
        "index_block_size": 16,
        "index_topk_blocks": 4,
        "index_local_blocks": 1,
    }
