"""The small formulas, against loops written out from their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from gnomon.engine.attention.heads import rotate, rotation
from gnomon.engine.models.layers import SwiGluOai, gemma_norm
from gnomon.engine.models.matrix import Linear, Matrix
from gnomon.engine.models.moe import moe, route, routed_experts
from gnomon.engine.models.weights import MlpWeights, MoeWeights
from gnomon.engine.options import WeightFormat

ACT = SwiGluOai(alpha=1.702, limit=7.0, beta=1.0)


def swiglu(gate: float, up: float) -> float:
    gate, up = min(gate, 7.0), max(-7.0, min(up, 7.0))
    return gate / (1.0 + math.exp(-1.702 * gate)) * (up + 1.0)


@pytest.mark.parametrize("gate", [-30.0, -7.5, -1.0, 0.0, 0.5, 6.9, 7.1, 50.0])
@pytest.mark.parametrize("up", [-50.0, -7.0, -1.0, 0.0, 3.0, 7.1, 1e4])
def test_the_gate_is_clamped_from_above_only_and_up_from_both_sides(gate: float, up: float) -> None:
    assert ACT(torch.tensor([gate, up])).item() == pytest.approx(swiglu(gate, up), rel=1e-5)


def test_gate_rows_come_before_up_rows() -> None:
    out = ACT(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert out.tolist() == pytest.approx([swiglu(1.0, 3.0), swiglu(2.0, 4.0)], rel=1e-5)


def test_the_norm_scales_by_one_plus_the_weight_and_rounds_once() -> None:
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    weight = torch.linspace(-0.5, 0.5, 16)
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + weight)
    assert torch.allclose(gemma_norm(x, weight, 1e-6), expected, atol=1e-6)
    half = x.bfloat16()
    wide = half.float() / (half.float().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert torch.equal(gemma_norm(half, weight, 1e-6), (wide * (1 + weight)).bfloat16())


def test_rope_turns_each_pair_by_its_angle_and_leaves_the_rest() -> None:
    positions = torch.tensor([0, 1, 17, 100_000])
    x = torch.randn(4, 3, 12, generator=torch.Generator().manual_seed(1))
    out = rotate(x, rotation(positions, 10_000.0, 8))
    for row, p in enumerate(positions.tolist()):
        for j in range(4):
            angle = p * 10_000.0 ** (-2 * j / 8)
            a, b = x[row, :, j], x[row, :, j + 4]
            turned = a * math.cos(angle) - b * math.sin(angle)
            assert torch.allclose(out[row, :, j], turned, atol=2e-2 if p > 1000 else 1e-5)
    assert torch.equal(out[..., 8:], x[..., 8:])
    assert torch.allclose(out.norm(dim=-1), x.norm(dim=-1), atol=1e-5)


def test_a_pad_rows_angles_are_finite() -> None:
    turn = rotation(torch.tensor([-1]), 5e6, 64)
    assert bool(torch.isfinite(turn.cos).all() and torch.isfinite(turn.sin).all())


def weights(experts: int = 5, hidden: int = 8, width: int = 6) -> MoeWeights:
    generator = torch.Generator().manual_seed(2)

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    def matrix(*shape: int) -> Matrix:
        return Matrix(WeightFormat.PLAIN, shape[-1], make(*shape))

    gate_up, down = matrix(2 * width, hidden), matrix(hidden, width)
    return MoeWeights(
        make(experts, hidden),
        make(experts),
        matrix(experts, 2 * width, hidden),
        matrix(experts, hidden, width),
        MlpWeights(Linear((gate_up,)), Linear((down,))),
    )


def test_the_bias_decides_who_is_chosen_but_not_the_weights() -> None:
    w = weights()
    x = torch.randn(30, 8, generator=torch.Generator().manual_seed(3))
    experts, shares = route(x, w, 2)
    scores = torch.sigmoid(x @ w.router.T)
    for row in range(30):
        by_biased = (scores[row] + w.bias).argsort(descending=True)[:2]
        assert set(experts[row].tolist()) == set(by_biased.tolist())
        chosen = scores[row, experts[row]]
        assert torch.allclose(shares[row], chosen / chosen.sum())
    assert (experts != scores.topk(2).indices).any(), "the bias must matter in this test"


@pytest.mark.parametrize("rows", [0, 1, 2, 40])
def test_grouping_rows_by_expert_equals_a_loop_over_rows(rows: int) -> None:
    w = weights()
    x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(4))
    experts, shares = route(x, w, 3)
    out = moe(x, w, 3, 2.0, ACT)
    for row in range(rows):
        routed = torch.zeros(8)
        for expert, share in zip(experts[row].tolist(), shares[row], strict=True):
            routed += share * (ACT(x[row] @ w.gate_up.data[expert].T) @ w.down.data[expert].T)
        gate_up, down = (linear.parts[0].data for linear in (w.shared.gate_up, w.shared.down))
        shared = ACT(x[row] @ gate_up.T) @ down.T
        assert torch.allclose(out[row], 2.0 * routed + shared, atol=1e-3, rtol=1e-4)


def test_an_expert_nobody_chose_is_not_run() -> None:
    w = weights()
    w.gate_up.data[4].fill_(float("nan"))
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(5))
    experts = torch.tensor([[0, 1], [2, 3], [0, 3], [1, 2], [3, 0], [2, 0]])
    out = routed_experts(x, experts, torch.full((6, 2), 0.5), w, ACT)
    assert bool(torch.isfinite(out).all())
