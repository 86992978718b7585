"""Random weights made in place, for performance work: no files, any size, finite activations."""

from __future__ import annotations

import math

import torch

from gnomon.engine.models.matrix import Matrix
from gnomon.engine.models.weight_formats import WeightGroup, group_of
from gnomon.engine.options import WeightFormat

_E2M1_RMS = 2.93  # of uniformly random codes
_E4M3_STD = 32.0  # far from both ends of e4m3
_E8M0_BIAS = 127


def fill(name: str, target: torch.Tensor | Matrix, generator: torch.Generator) -> None:
    """Fill one tensor of the model with numbers of a sensible size.

    Matrices get a standard deviation of about ``width ** -0.5``, so that activations keep theirs;
    norms, embeddings and the router's bias get small numbers around their neutral value.

    Args:
        name: released name.
        target: a tensor or a matrix in any format; filled in place.
        generator: on the target's device.
    """
    if isinstance(target, torch.Tensor):
        fan_in = target.shape[-1] if target.dim() == 2 and "embed" not in name else None
        target.normal_(0.0, 0.02 if fan_in is None else fan_in**-0.5, generator=generator)
        return
    assert group_of(name) is not WeightGroup.EXACT
    std = target.width**-0.5
    if target.format is WeightFormat.PLAIN:
        target.data.normal_(0.0, std, generator=generator)
        return
    assert target.scale is not None
    if target.format is WeightFormat.MXFP8:
        wide = torch.empty(target.data.shape, dtype=torch.bfloat16, device=target.data.device)
        target.data.copy_(wide.normal_(0.0, _E4M3_STD, generator=generator))
        target.scale.fill_(_E8M0_BIAS + round(math.log2(std / _E4M3_STD)))
        return
    target.data.random_(0, 256, generator=generator)
    if target.row_scale is None:
        target.scale.fill_(_E8M0_BIAS + round(math.log2(std / _E2M1_RMS)))
    else:
        target.scale.fill_(1.0)
        target.row_scale.fill_(std / _E2M1_RMS)
