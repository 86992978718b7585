"""From plain weights to packed ones: the rules of ``gnomon model quantize`` and of loading.

Scales of MXFP8 and MXFP4 follow RCEIL, the smallest power of two by which no element is clipped;
elements round to nearest, ties to even. NVFP4 follows ModelOpt: one fp32 factor a tensor,
``amax / (6 * 448)``, and e4m3 scales ``amax / (6 * factor)`` a group.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from gnomon.engine.layouts.e2m1 import E2M1_MAX, encode_magnitude, grouped, pack
from gnomon.engine.layouts.fp8 import E4M3_MAX, to_e4m3
from gnomon.engine.layouts.mxfp4 import rceil_bytes
from gnomon.engine.layouts.nvfp4 import MIN_SCALE
from gnomon.engine.models.matrix import Matrix
from gnomon.engine.models.weight_formats import GROUP, width_problem
from gnomon.engine.options import WeightFormat


def quantise(weight: torch.Tensor, fmt: WeightFormat) -> Matrix:
    """Pack one matrix.

    Args:
        weight: floating [out, width], finite.
        fmt: a quantised format.

    Raises:
        ValueError: the weight is not finite, or the format cannot store this width.
    """
    width = weight.shape[-1]
    problem = width_problem(fmt, width)
    if problem:
        raise ValueError(problem)
    x = weight.float()
    if not bool(torch.isfinite(x).all()):
        raise ValueError("it holds NaN or Inf")
    size = GROUP[fmt]
    groups = grouped(F.pad(x, (0, -width % size)), size)
    amax = groups.abs().amax(-1, keepdim=True)
    if fmt is WeightFormat.NVFP4:
        return _nvfp4(groups, amax, width)
    largest = E4M3_MAX if fmt is WeightFormat.MXFP8 else E2M1_MAX
    scale = rceil_bytes(amax, largest)
    # 2^(127 - byte) from its bits: exact, and finite for byte 0 where a division is not.
    scaled = groups * ((254 - scale) << 23).view(torch.float32)
    bytes_ = scale.squeeze(-1).to(torch.uint8)
    if fmt is WeightFormat.MXFP8:
        return Matrix(fmt, width, to_e4m3(scaled).flatten(-2)[..., :width].contiguous(), bytes_)
    return Matrix(fmt, width, _codes(scaled, width), bytes_)


def _nvfp4(groups: torch.Tensor, amax: torch.Tensor, width: int) -> Matrix:
    largest = amax.amax() if amax.numel() else amax.new_zeros(())
    # Divisions by tensors: torch on CUDA multiplies by the reciprocal of a Python number.
    top = amax.new_full((), E2M1_MAX)
    factor = torch.where(largest == 0, 1.0, largest / (top * E4M3_MAX))
    factor = factor.clamp_min(torch.finfo(torch.float32).tiny)
    scale = to_e4m3(amax / top / factor).float().clamp_min(MIN_SCALE)
    codes = _codes(groups / (scale * factor), width)
    scales = scale.squeeze(-1).to(torch.float8_e4m3fn)
    return Matrix(WeightFormat.NVFP4, width, codes, scales, factor.repeat(groups.shape[0]))


def _codes(scaled: torch.Tensor, width: int) -> torch.Tensor:
    """e2m1 codes of groups [out, groups, size], packed [out, width / 2]; zeros are positive."""
    codes = encode_magnitude(scaled.abs())
    codes = torch.where(torch.signbit(scaled) & (codes > 0), codes + 8.0, codes)
    return pack(codes.flatten(-2).to(torch.uint8))[..., : width // 2].contiguous()
