"""The small formulas of the model: Gemma norm, partial rope, SwiGLU-OAI."""

from __future__ import annotations

from dataclasses import dataclass

import torch


def gemma_norm_fp32(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm over the last dim, scaled by one plus the stored weight, left in fp32.

    Stored weights are centred on zero; a loader must not shift them.

    Args:
        x: [..., n], any float dtype.
        weight: [n].
        eps: added to the mean square.
    """
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (1.0 + weight.float())


def gemma_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """:func:`gemma_norm_fp32`, rounded once to the dtype of ``x``."""
    return gemma_norm_fp32(x, weight, eps).to(x.dtype)


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines of R rows.

    Attributes:
        cos: fp32 [R, 1, rotary_dim // 2].
        sin: same shape.
    """

    cos: torch.Tensor
    sin: torch.Tensor


def rotation(positions: torch.Tensor, theta: float, rotary_dim: int) -> Rotation:
    """Angles ``position * theta ** (-2j / rotary_dim)`` in fp32, whatever the compute dtype.

    Args:
        positions: int64 [R], absolute; a pad row's -1 gives finite values that nobody reads.
        theta: rope base.
        rotary_dim: leading dims of a head that rotate, even.
    """
    steps = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=positions.device)
    angles = positions.float()[:, None] * (1.0 / theta ** (steps / rotary_dim))
    return Rotation(angles.cos()[:, None, :], angles.sin()[:, None, :])


def rotate(x: torch.Tensor, turn: Rotation) -> torch.Tensor:
    """Rotate the pairs (i, i + rotary_dim / 2) of the leading dims; the rest passes through.

    Args:
        x: fp32 [R, heads, n] with n at least rotary_dim.
        turn: angles of the R rows.
    """
    half = turn.cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * turn.cos - b * turn.sin, b * turn.cos + a * turn.sin, rest), dim=-1)


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
