"""Configs of published models, so that a plan needs no download. Figures only; no weights.

Sources: the config files of MiniMaxAI/MiniMax-M3 and MiniMaxAI/MiniMax-M3.1-Flash as transformers'
``minimax_m3_vl`` defaults and vLLM's MiniMax-M3 files give them. M3.1's list of dense MLP layers is
taken to be M3's (the first three): its published 428 B parameters leave no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LAYERS = 60
_DENSE_FIRST = [0] * 3 + [1] * (_LAYERS - 3)
_ALL_SPARSE = [1] * _LAYERS


def minimax_m3() -> dict[str, Any]:
    """MiniMax-M3: dense attention in the first three layers."""
    return _config(_DENSE_FIRST)


def minimax_m31() -> dict[str, Any]:
    """MiniMax-M3.1: an indexed sparse attention in every layer."""
    return _config(_ALL_SPARSE)


RELEASED: dict[str, Callable[[], dict[str, Any]]] = {
    "minimax-m3": minimax_m3,
    "minimax-m3.1": minimax_m31,
}
"""By the name given to ``gnomon plan``: the content of config.json."""


def _config(sparse: list[int]) -> dict[str, Any]:
    text = {
        "architectures": ["MiniMaxM3SparseForCausalLM"],
        "vocab_size": 200_064,
        "hidden_size": 6144,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 3072,
        "dense_intermediate_size": 12_288,
        "shared_intermediate_size": 3072,
        "n_shared_experts": 1,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "routed_scaling_factor": 2.0,
        "moe_layer_freq": list(_DENSE_FIRST),
        "hidden_act": "swigluoai",
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "rms_norm_eps": 1e-6,
        "use_gemma_norm": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_head",
        "attention_output_gate": False,
        "rope_theta": 5_000_000,
        "rotary_dim": 64,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 1_048_576,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_num_index_heads": 4,
            "sparse_index_dim": 128,
            "sparse_block_size": 128,
            "sparse_topk_blocks": 16,
            "sparse_init_block": 0,
            "sparse_local_block": 1,
            "sparse_score_type": "max",
            "sparse_attention_freq": list(sparse),
            "sparse_disable_index_value": list(sparse),
        },
        "bos_token_id": 200_034,
        "eos_token_id": 200_020,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    return {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "model_type": "minimax_m3_vl",
        "image_token_index": 200_025,
        "video_token_index": 200_026,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "text_config": text,
    }
