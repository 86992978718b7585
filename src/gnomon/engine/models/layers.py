"""The small formulas of the model: Gemma norm, SwiGLU-OAI."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnomon.engine.attention.heads import gemma_norm_fp32


def gemma_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """:func:`gemma_norm_fp32`, rounded once to the dtype of ``x``."""
    return gemma_norm_fp32(x, weight, eps).to(x.dtype)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(-x)).

    Not torch's own, which on a CPU rounds the last elements of a tensor in another way than the
    rest: what a row gets would depend on how many rows there are.
    """
    return 1.0 / (1.0 + torch.exp(-x))


@dataclass(frozen=True)
class SwiGluOai:
    """The family's activation: ``g * sigmoid(alpha * g) * (u + beta)``.

    The gate g is clamped to at most ``limit``, the up part u to within plus or minus ``limit``.
    All three numbers come from the config: plain SiLU in their place gives plausible, wrong text.
    """

    alpha: float
    limit: float
    beta: float

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[..., 2 I] as gate rows then up rows (not interleaved) to [..., I]; fp32 inside."""
        gate, up = gate_up.float().chunk(2, dim=-1)
        gate = gate.clamp(max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        return (gate * sigmoid(self.alpha * gate) * (up + self.beta)).to(gate_up.dtype)
