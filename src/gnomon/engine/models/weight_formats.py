"""Formats of weight matrices as data: groups, bytes, and which matrices share a format. No torch.

Every format groups consecutive input features of one output row; the last group may be short:

* ``mxfp8``: e4m3 elements, one e8m0 scale byte per 32 (OCP Microscaling Formats v1.0, MXFP8);
* ``mxfp4``: e2m1 elements, two a byte, one e8m0 scale byte per 32 (the same, MXFP4);
* ``nvfp4``: e2m1 elements, one e4m3 scale per 16, one fp32 factor per tensor (ModelOpt).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum

from gnomon.engine.options import WeightFormat

Formats = Callable[[str], WeightFormat]
"""Format of each matrix by its released name, without the ``language_model.`` prefix."""

GROUP: dict[WeightFormat, int] = {
    WeightFormat.MXFP8: 32,
    WeightFormat.MXFP4: 32,
    WeightFormat.NVFP4: 16,
}
"""Input features that share one scale."""

_FP32 = 4


class WeightGroup(StrEnum):
    """Matrices that public checkpoints quantise together."""

    EXPERTS = "experts"  # routed experts
    LINEARS = "linears"  # q, k, v, o, dense MLPs and shared experts
    INDEX = "index"  # projections of the index branch
    EXACT = "exact"  # embedding, head, norms, router: never quantised


_GROUPS: tuple[tuple[re.Pattern[str], WeightGroup], ...] = (
    (re.compile(r"\.block_sparse_moe\.experts\.\d+\.w[123]\.weight$"), WeightGroup.EXPERTS),
    (re.compile(r"\.self_attn\.index_[qk]_proj\.weight$"), WeightGroup.INDEX),
    (re.compile(r"\.self_attn\.[qkvo]_proj\.weight$"), WeightGroup.LINEARS),
    (
        re.compile(r"\.(mlp|block_sparse_moe\.shared_experts)\.(gate|up|down)_proj\.weight$"),
        WeightGroup.LINEARS,
    ),
)


def group_of(name: str) -> WeightGroup:
    """The group of a released tensor name."""
    for pattern, group in _GROUPS:
        if pattern.search(name):
            return group
    return WeightGroup.EXACT


def plain_formats(name: str) -> WeightFormat:
    """The formats of a checkpoint in which nothing is quantised."""
    return WeightFormat.PLAIN


def formats_of_groups(
    experts: WeightFormat, linears: WeightFormat, index: WeightFormat = WeightFormat.PLAIN
) -> Formats:
    """One format for each group, whatever the layer."""
    by_group = {
        WeightGroup.EXPERTS: experts,
        WeightGroup.LINEARS: linears,
        WeightGroup.INDEX: index,
        WeightGroup.EXACT: WeightFormat.PLAIN,
    }
    return lambda name: by_group[group_of(name)]


_PLAIN, _MXFP8 = WeightFormat.PLAIN, WeightFormat.MXFP8

RELEASED_SCHEMES: dict[str, tuple[str, Formats]] = {
    "bf16": ("nothing quantised, as MiniMaxAI/MiniMax-M3", plain_formats),
    "mxfp8": (
        "experts and linears MXFP8, index projections bf16, as MiniMaxAI/MiniMax-M3-MXFP8",
        formats_of_groups(_MXFP8, _MXFP8),
    ),
    "mxfp4": (
        "experts MXFP4, everything else bf16, as amd/MiniMax-M3-MXFP4",
        formats_of_groups(WeightFormat.MXFP4, _PLAIN),
    ),
    "nvfp4": (
        "experts NVFP4, linears and index projections MXFP8, as nvidia/MiniMax-M3-NVFP4",
        formats_of_groups(WeightFormat.NVFP4, _MXFP8, _MXFP8),
    ),
}
"""What the published checkpoints quantise, by the name a user gives a plan: meaning and formats."""


def groups(width: int, fmt: WeightFormat) -> int:
    """Scales of a row of ``width`` input features."""
    return -(-width // GROUP[fmt])


def width_problem(fmt: WeightFormat, width: int) -> str | None:
    """Why a format cannot store rows of this many input features; None if it can."""
    if fmt in (WeightFormat.MXFP4, WeightFormat.NVFP4) and width % 2:
        return f"{fmt.value} packs two elements a byte, so {width} input features are one too many"
    return None


def matrix_bytes(fmt: WeightFormat, rows: int, width: int, element: int) -> int:
    """Bytes of a [rows, width] matrix as the engine holds it.

    Args:
        fmt: its format.
        rows: output features.
        width: input features.
        element: bytes of an element that is not quantised.
    """
    if fmt is WeightFormat.PLAIN:
        return rows * width * element
    if fmt is WeightFormat.MXFP8:
        return rows * (width + groups(width, fmt))
    packed = rows * (width // 2 + groups(width, fmt))
    # NVFP4's tensor factor is kept once a row, so that fused matrices may have several.
    return packed + (rows * _FP32 if fmt is WeightFormat.NVFP4 else 0)
