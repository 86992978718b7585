"""The two feed-forward blocks: a SwiGLU MLP, and sigmoid-routed experts with a shared one."""

from __future__ import annotations

import torch

from gnomon.engine.models.layers import SwiGluOai, sigmoid
from gnomon.engine.models.matrix import Matrix
from gnomon.engine.models.weights import MlpWeights, MoeWeights
from gnomon.engine.options import WeightFormat
from gnomon.engine.row_tiles import linear, multiply_groups


def mlp(x: torch.Tensor, w: MlpWeights, act: SwiGluOai) -> torch.Tensor:
    """X [R, h] through gate and up, the activation, and down."""
    return w.down(act(w.gate_up(x)))


def route(x: torch.Tensor, w: MoeWeights, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts by ``sigmoid(logit) + bias``; weigh them by the sigmoids alone.

    Args:
        x: [R, h].
        w: the router is applied in fp32.
        top_k: experts a row.

    Returns:
        Experts int64 [R, top_k] and their weights fp32 [R, top_k], which sum to 1.
    """
    scores = sigmoid(linear(x.float(), w.router))
    experts = torch.topk(scores + w.bias, top_k, dim=-1).indices
    chosen = scores.gather(-1, experts)
    return experts, chosen / chosen.sum(-1, keepdim=True)


def routed_experts(
    x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, w: MoeWeights, act: SwiGluOai
) -> torch.Tensor:
    """Weighted sum of each row's experts, fp32 [R, h].

    Rows are grouped by expert, so that each expert that is hit runs once over all its rows.

    Args:
        x: [R, h].
        experts: int64 [R, k].
        weights: fp32 [R, k].
        w: the experts' weights.
        act: the activation.
    """
    rows, top_k = experts.shape
    order = experts.flatten().argsort(stable=True)
    counts = torch.bincount(experts.flatten(), minlength=w.gate_up.data.shape[0])
    bounds = [0, *counts.cumsum(0).tolist()]

    def grouped(x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
        out = x.new_empty((len(x), matrix.num_rows))
        if matrix.format is WeightFormat.PLAIN and matrix.data.dtype == x.dtype:
            multiply_groups(x, bounds, matrix.data.mT, out)
        else:  # an expert is unpacked when it is hit
            multiply_groups(x, bounds, lambda expert: matrix[expert].dense(x.dtype).t(), out)
        return out

    inner = act(grouped(x[order // top_k], w.gate_up))
    outputs = torch.empty(rows * top_k, x.shape[1], dtype=torch.float32, device=x.device)
    outputs[order] = grouped(inner, w.down).float()
    by_choice = outputs.view(rows, top_k, x.shape[1])
    total = by_choice[:, 0] * weights[:, :1]
    for choice in range(1, top_k):  # one after another: a row's sum has one order, whatever R
        total = total + by_choice[:, choice] * weights[:, choice, None]
    return total


def moe(x: torch.Tensor, w: MoeWeights, top_k: int, scaling: float, act: SwiGluOai) -> torch.Tensor:
    """Scaling times the routed sum, plus the unscaled shared expert: x [R, h] to [R, h]."""
    experts, weights = route(x, w, top_k)
    routed = routed_experts(x, experts, weights, w, act) * scaling
    return (routed + mlp(x, w.shared, act).float()).to(x.dtype)
