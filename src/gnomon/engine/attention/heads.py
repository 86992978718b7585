"""From a layer's projection to its heads: per-head norm and partial rope, as formulas."""

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


@dataclass(frozen=True)
class HeadNorms:
    """Weights of the per-head norms, each shared by the heads of its kind.

    Attributes:
        q: [D].
        k: [D].
        index_q: [Di], or None if the layer has no index branch: it is dense, or reuses the
            selection of another.
        index_k: [Di], or None likewise.
        eps: added to the mean square.
    """

    q: torch.Tensor
    k: torch.Tensor
    index_q: torch.Tensor | None
    index_k: torch.Tensor | None
    eps: float

    @property
    def has_index(self) -> bool:
        """Whether the layer has an index branch."""
        return self.index_q is not None

    def widths(self, total: int, kv_heads: int) -> list[int]:
        """Columns of q, k, v and, with an index branch, index q and index k in a projection.

        Args:
            total: columns of the projection.
            kv_heads: KV heads; index q has as many, index k one.
        """
        kv = kv_heads * self.k.shape[0]
        index = [] if self.index_q is None else [kv_heads * len(self.index_q), len(self.index_q)]
        return [total - 2 * kv - sum(index), kv, kv, *index]


@dataclass(frozen=True)
class Queries:
    """The queries of a step, normed and rotated.

    Attributes:
        q: [R, Hq, D], the projection's dtype.
        index_q: [R, Hi, Di], the projection's dtype or e4m3; None without an index branch.
    """

    q: torch.Tensor
    index_q: torch.Tensor | None
