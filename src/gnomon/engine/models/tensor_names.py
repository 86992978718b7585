"""Names a checkpoint may give the text model's tensors, brought to one spelling.

Three prefixes are in use for the released layout, and transformers' text-only class saves its own
fused names. Parts of a released checkpoint that are not the text model are known by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gnomon.engine.models.tensors import Shape

Index = tuple[slice | int, ...]
Part = tuple[str, Shape, Index]

_FUSED_EXPERTS = re.compile(r"(model\.layers\.\d+\.)mlp\.experts\.(gate_up|down)_proj")
_FUSED_MLP = re.compile(r"(model\.layers\.\d+\.)mlp\.(shared_experts\.)?gate_up_proj\.weight")

_PREFIXES = (("model.language_model.", "model."), ("language_model.", ""))

_NOT_TEXT = re.compile(
    r"^(model\.)?(vision_tower|multi_modal_projector|patch_merge_mlp)\."
    r"|(^|\.)mtp\."
    r"|\.rotary_emb\.inv_freq$"
)


def is_text_tensor(name: str) -> bool:
    """Whether a tensor belongs to the text model, rather than to vision or a built-in draft."""
    return not _NOT_TEXT.search(name)


def plain_name(name: str) -> str:
    """The name without the prefix that says it belongs to a language model of a larger one."""
    for prefix, replacement in _PREFIXES:
        if name.startswith(prefix):
            return replacement + name[len(prefix) :]
    return name


_FUSED_SUFFIXES = (
    ("self_attn.indexer.q_proj.weight", "self_attn.index_q_proj.weight"),
    ("self_attn.indexer.k_proj.weight", "self_attn.index_k_proj.weight"),
    ("self_attn.indexer.q_norm.weight", "self_attn.index_q_norm.weight"),
    ("self_attn.indexer.k_norm.weight", "self_attn.index_k_norm.weight"),
    ("mlp.gate.weight", "block_sparse_moe.gate.weight"),
    ("mlp.gate.e_score_correction_bias", "block_sparse_moe.e_score_correction_bias"),
    ("mlp.shared_experts.down_proj.weight", "block_sparse_moe.shared_experts.down_proj.weight"),
)


def parts_of_name(name: str, shape: Shape, expected: Mapping[str, Shape]) -> list[Part]:
    """Which released tensors a tensor of a file holds: itself, or the parts of a fused one.

    Args:
        name: plain name.
        shape: shape in the file.
        expected: released names of the model.

    Returns:
        Released name, shape and index into the tensor for each part; empty if the name is of
        neither layout.
    """
    if name in expected:
        return [(name, shape, ())]
    for suffix, released in _FUSED_SUFFIXES:
        if name.endswith(suffix):
            return [(name.removesuffix(suffix) + released, shape, ())]
    if match := _FUSED_EXPERTS.fullmatch(name):
        return _expert_parts(match[1] + "block_sparse_moe.experts.", match[2], shape)
    if match := _FUSED_MLP.fullmatch(name):
        prefix = match[1] + (f"block_sparse_moe.{match[2]}" if match[2] else "mlp.")
        return _halves(prefix + "gate_proj.weight", prefix + "up_proj.weight", shape, ())
    return []


def _expert_parts(prefix: str, kind: str, shape: Shape) -> list[Part]:
    parts: list[Part] = []
    for expert in range(shape[0]):
        if kind == "down":
            parts.append((f"{prefix}{expert}.w2.weight", shape[1:], (expert,)))
        else:
            names = (f"{prefix}{expert}.w1.weight", f"{prefix}{expert}.w3.weight")
            parts += _halves(*names, shape[1:], (expert,))
    return parts


def _halves(gate: str, up: str, shape: Shape, index: Index) -> list[Part]:
    """A fused [gate rows; up rows] tensor."""
    half = shape[0] // 2
    rest = shape[1:]
    return [
        (gate, (half, *rest), (*index, slice(0, half))),
        (up, (shape[0] - half, *rest), (*index, slice(half, None))),
    ]
