"""The 4-bit element of both fp4 formats (OCP Microscaling Formats v1.0, FP4 E2M1).

Codes 0 to 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign; there is no Inf or NaN. Two codes
share a byte, the even element in the low nibble.
"""

from __future__ import annotations

import functools

import torch

E2M1_MAX = 6.0
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_VALUES: tuple[float, ...] = _MAGNITUDES + tuple(-m for m in _MAGNITUDES)


def encode_magnitude(magnitude: torch.Tensor) -> torch.Tensor:
    """Round to the nearest code, ties to the even code, saturating at 6.

    Args:
        magnitude: fp32 [...], not negative, not NaN; modified in place.

    Returns:
        fp32 [...], codes 0 to 7 as whole numbers.
    """
    m = magnitude.clamp_(max=E2M1_MAX)
    # The grid is uniform with step 0.5 below 2, 1 from 2 to 4 and 2 from 4 to 6; scaled to unit
    # steps, round() resolves ties to even, and even codes are the values with an even mantissa.
    fine = torch.round(m * 2.0)
    middle = torch.round(m).add_(2.0)
    coarse = torch.round(m * 0.5).add_(4.0)
    return torch.where(m < 2.0, fine, torch.where(m < 4.0, middle, coarse))


def grouped(x: torch.Tensor, size: int) -> torch.Tensor:
    """View the last dim as groups: [..., n] to [..., n / size, size]."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Pack uint8 codes [..., n] in pairs into uint8 [..., n / 2]."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(data: torch.Tensor) -> torch.Tensor:
    """Unpack uint8 [..., n] into codes uint8 [..., 2n]."""
    return torch.stack((data & 0xF, data >> 4), dim=-1).flatten(-2)


def decode_bytes(data: torch.Tensor) -> torch.Tensor:
    """Values of packed codes: uint8 [..., n] to fp32 [..., 2n].

    One table of 256 value pairs, each pair fetched as one 64-bit word: several times faster on a
    CPU than indexing a [256, 2] table.
    """
    table = _pair_table(data.device)
    words = torch.index_select(table, 0, data.flatten().int())
    return words.view(torch.float32).view(*data.shape[:-1], data.shape[-1] * 2)


@functools.cache
def _pair_table(device: torch.device) -> torch.Tensor:
    """int64 [256]: the fp32 values of each byte's two codes, low nibble first, as one word."""
    values = torch.tensor(E2M1_VALUES, dtype=torch.float32)
    byte = torch.arange(256)
    pairs = torch.stack((values[byte & 0xF], values[byte >> 4]), dim=-1).contiguous()
    return pairs.view(torch.int64).flatten().to(device)
