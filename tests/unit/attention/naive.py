"""Attention written as loops over tokens, straight from the definition; slow and independent.

It keeps the vectors it is given in ordinary tensors [tokens, ...] per request: no pages, no tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from gnomon.engine.attention.rows import SelectionRule


@dataclass
class History:
    """Keys [T, Hk, D], values [T, Hk, D] and index keys [T, Di] of one request, as cached."""

    k: torch.Tensor
    v: torch.Tensor
    index_k: torch.Tensor


def select_row(
    index_q: torch.Tensor,
    index_k: torch.Tensor,
    position: int,
    block_size: int,
    rule: SelectionRule,
) -> list[int]:
    """Blocks of one row and head: index_q [Di], index_k [T, Di]."""
    own = position // block_size
    visible = range(own + 1)
    forced = [b for b in visible if b < rule.init_blocks or b > own - rule.local_blocks]
    scored = []
    for block in visible:
        if block in forced:
            continue
        score = -math.inf
        for token in range(block * block_size, (block + 1) * block_size):
            dot = float(index_k[token] @ index_q)
            score = dot if math.isnan(dot) or dot > score else score
            if math.isnan(score):
                break
        if not math.isnan(score):
            scored.append((-score, block))
    history = [block for _, block in sorted(scored)][: rule.topk_blocks - len(forced)]
    return history + forced


def attend_row(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tokens: list[int]
) -> torch.Tensor:
    """Attention of q [D] over the listed tokens of k, v [T, D]; zeros if there are none."""
    if not tokens:
        return torch.zeros_like(q)
    logits = torch.tensor([float(k[t].double() @ q.double()) for t in tokens]).double()
    weights = torch.softmax(logits / math.sqrt(q.shape[0]), dim=0)
    out = torch.zeros(q.shape[0], dtype=torch.float64)
    for weight, token in zip(weights, tokens, strict=True):
        out += weight * v[token].double()
    return out.float()


def sparse_tokens(blocks: list[int], position: int, block_size: int) -> list[int]:
    """Tokens of the blocks up to and including ``position``."""
    return [
        t
        for block in blocks
        for t in range(block * block_size, (block + 1) * block_size)
        if t <= position
    ]
