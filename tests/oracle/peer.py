"""The transformers model as oracle: tiny configs, random weights, logits and selected blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    DynamicCache,
    MiniMaxM3SparseForConditionalGeneration,
    MiniMaxM3VLForCausalLM,
)
from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import (
    MiniMaxM3VLConfig,
    MiniMaxM3VLTextConfig,
)

from gnomon.engine.models.config import load_config
from gnomon.engine.models.loader import load_model
from gnomon.engine.models.minimax_m3 import MiniMaxM3
from gnomon.engine.options import EngineOptions

FULL, SPARSE = "full_attention", "minimax_m3_sparse"


def tiny_config(**changes: Any) -> MiniMaxM3VLTextConfig:
    """Three layers: dense attention with MLP, then two sparse ones with experts."""
    head_dim = changes.get("head_dim", 64)
    fields: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rotary_dim": head_dim // 2,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5e6,
            "partial_rotary_factor": 0.5,
        },
        "intermediate_size": 48,
        "dense_intermediate_size": 160,
        "shared_intermediate_size": 64,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 4096,
        "layer_types": [FULL, SPARSE, SPARSE],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "index_n_heads": changes.get("num_key_value_heads", 2),
        "index_head_dim": 64,
        "index_block_size": 16,
        "index_topk_blocks": 4,
        "index_local_blocks": 1,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.08,
    }
    return MiniMaxM3VLTextConfig(**{**fields, **changes})


def peer_model(config: MiniMaxM3VLTextConfig, seed: int = 0) -> MiniMaxM3VLForCausalLM:
    """fp32 model whose norms and router bias are far from their neutral values."""
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model = MiniMaxM3VLForCausalLM(config).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "norm" in name:
                tensor.normal_(0, 0.2)
            elif name.endswith("e_score_correction_bias"):
                tensor.normal_(0, 0.1)
    return model.requires_grad_(False)


@dataclass(frozen=True)
class PeerRun:
    """One full forward of the oracle.

    Attributes:
        logits: [T, V].
        blocks: for each sparse layer, selected blocks [T, Hi, k] with -1 as filler.
        margin: smallest gap between the last kept and the best dropped score, of blocks and of
            experts, each in units of a gap that the rounding of two fp32 programs cannot close.
            Below 1 the choice has no right answer.
    """

    logits: torch.Tensor
    blocks: dict[int, torch.Tensor]
    margin: float


BLOCK_GAP = 1e-4  # block scores are about 10
EXPERT_GAP = 1e-5  # expert scores are about 1


@contextmanager
def _top_k_margins() -> Iterator[list[float]]:
    """Watch every top-k: the indexer calls the method, the router the function."""
    margins: list[float] = []
    method, function = torch.Tensor.topk, torch.topk

    def watch(scores: torch.Tensor, k: int, unit: float) -> None:
        best = method(scores, min(k + 1, scores.shape[-1]), dim=-1).values
        if best.shape[-1] > k:
            gap = best[..., k - 1] - best[..., k]
            margins.append(float(gap[torch.isfinite(best[..., k])].min()) / unit)

    def of_blocks(scores: torch.Tensor, k: int, dim: int) -> Any:
        watch(scores, k, BLOCK_GAP)
        return method(scores, k, dim=dim)

    def of_experts(scores: torch.Tensor, k: int, dim: int, sorted: bool) -> Any:
        watch(scores, k, EXPERT_GAP)
        return function(scores, k, dim=dim, sorted=sorted)

    torch.Tensor.topk, torch.topk = of_blocks, of_experts  # type: ignore[assignment]
    try:
        yield margins
    finally:
        torch.Tensor.topk, torch.topk = method, function  # type: ignore[method-assign]


def run_peer(
    model: MiniMaxM3VLForCausalLM, ids: list[int], cache: DynamicCache | None = None
) -> PeerRun:
    """One full forward; a cache may replace what is attended to."""
    blocks: dict[int, torch.Tensor] = {}

    def keep(layer: int) -> Callable[..., None]:
        def hook(module: object, inputs: object, output: torch.Tensor) -> None:
            blocks[layer] = output[0].transpose(0, 1).clone()

        return hook

    hooks = [
        layer.self_attn.indexer.register_forward_hook(keep(i))
        for i, layer in enumerate(model.model.layers)
        if layer.self_attn.indexer is not None
    ]
    try:
        with _top_k_margins() as margins:
            out = model(
                input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=cache is not None
            )
    finally:
        for hook in hooks:
            hook.remove()
    return PeerRun(out.logits[0].float(), blocks, min(margins, default=float("inf")))


def settled_run(model: MiniMaxM3VLForCausalLM, length: int) -> tuple[list[int], PeerRun]:
    """Random tokens for which no choice of the oracle is a near tie, and its run on them."""
    for seed in range(50):
        ids = random_ids(length, model.config.vocab_size, seed)
        run = run_peer(model, ids)
        if run.margin > 1:
            return ids, run
    raise AssertionError("every input has a near tie")


def save_text_only(model: MiniMaxM3VLForCausalLM, folder: Path) -> Path:
    """Save with the text-only class: fused tensor names, transformers' config spelling."""
    model.save_pretrained(folder)
    return folder


def save_released(model: MiniMaxM3VLForCausalLM, folder: Path, shard_size: str = "50GB") -> Path:
    """Save through the class of the released checkpoints, vision tower and all."""
    config = MiniMaxM3VLConfig(
        text_config=model.config.to_dict(),
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
        },
        projector_hidden_size=32,
        image_token_index=3,
        video_token_index=4,
    )
    whole = MiniMaxM3SparseForConditionalGeneration(config).eval()
    whole.model.language_model.load_state_dict(model.model.state_dict())
    whole.lm_head.load_state_dict(model.lm_head.state_dict())
    whole.save_pretrained(folder, max_shard_size=shard_size)
    return folder


def random_ids(length: int, vocab_size: int, seed: int = 0) -> list[int]:
    """Token ids that avoid the special ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, vocab_size, (length,), generator=generator).tolist()


def load_engine(folder: Path, **options: Any) -> MiniMaxM3:
    """Load a saved checkpoint the way the engine does."""
    asked = EngineOptions(model=str(folder), **options)
    return load_model(folder, load_config(folder, asked), asked)
