"""An independent writer of quantised checkpoints, straight from the formats' specifications.

OCP Microscaling Formats v1.0 gives the tables of e2m1, e4m3 and e8m0; the tensor names are those of
MiniMax-M3-MXFP8, Quark, compressed-tensors and ModelOpt. Codes are drawn at random and the float64
values they mean are worked out by table here, with nothing of the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def e4m3_value(code: int) -> float:
    """Sign, 4 bits of exponent with bias 7, 3 of mantissa; exponent 0 is subnormal; 0x7f NaN."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if code & 0x7F == 0x7F:
        return float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


E4M3 = np.array([e4m3_value(code) for code in range(256)])
E4M3_FINITE = np.array([code for code in range(256) if code & 0x7F != 0x7F], dtype=np.uint8)
LARGEST_BF16 = (2 - 2**-7) * 2.0**127

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Written:
    """One matrix: its tensors by suffix ("weight", "weight_scale", ...) and its float64 values."""

    tensors: Tensors
    values: np.ndarray


Writer = Callable[[np.random.Generator, int, int], Written]


def spread(scales: np.ndarray, group: int, width: int) -> np.ndarray:
    """One scale a feature: [rows, groups] to [rows, width]."""
    return np.repeat(scales, group, axis=1)[:, :width]


def e8m0_scales(
    rng: np.random.Generator, rows: int, count: int, low: int, high: int
) -> tuple[np.ndarray, np.ndarray]:
    codes = rng.integers(low, high + 1, (rows, count), dtype=np.uint8)
    return codes, 2.0 ** (codes.astype(np.float64) - 127)


def mxfp8(
    rng: np.random.Generator, rows: int, width: int, *, low: int = 115, high: int = 117,
    name: str = "weight_scale_inv", as_e8m0: bool = False,
) -> Written:  # fmt: skip
    elements = E4M3_FINITE[rng.integers(0, len(E4M3_FINITE), (rows, width))]
    codes, scales = e8m0_scales(rng, rows, -(-width // 32), low, high)
    stored = torch.from_numpy(codes)
    return Written(
        {
            "weight": torch.from_numpy(elements).view(torch.float8_e4m3fn),
            name: stored.view(torch.float8_e8m0fnu) if as_e8m0 else stored,
        },
        clamped(E4M3[elements] * spread(scales, 32, width)),
    )


def clamped(values: np.ndarray) -> np.ndarray:
    return np.clip(values, -LARGEST_BF16, LARGEST_BF16)


def packed_codes(rng: np.random.Generator, rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes [rows, width], and two a byte with the even feature in the low nibble."""
    codes = rng.integers(0, 16, (rows, width), dtype=np.uint8)
    data = np.zeros((rows, width // 2), dtype=np.uint8)
    for column in range(width):
        data[:, column // 2] |= codes[:, column] << (4 if column % 2 else 0)
    return codes, data


def mxfp4(
    rng: np.random.Generator, rows: int, width: int, *, low: int = 122, high: int = 124,
    data_name: str = "weight", name: str = "weight_scale", as_e8m0: bool = False,
) -> Written:  # fmt: skip
    codes, data = packed_codes(rng, rows, width)
    scale_codes, scales = e8m0_scales(rng, rows, -(-width // 32), low, high)
    stored = torch.from_numpy(scale_codes)
    return Written(
        {
            data_name: torch.from_numpy(data),
            name: stored.view(torch.float8_e8m0fnu) if as_e8m0 else stored,
        },
        clamped(E2M1[codes] * spread(scales, 32, width)),
    )


def nvfp4(
    rng: np.random.Generator, rows: int, width: int, *, data_name: str = "weight",
    factor_name: str = "weight_scale_2", divides: bool = False,
) -> Written:  # fmt: skip
    codes, data = packed_codes(rng, rows, width)
    scale_codes = rng.integers(1, 0x7F, (rows, -(-width // 16)), dtype=np.uint8)
    factor = np.float32(rng.uniform(0.5, 2.0) * 2.0**-11)
    stored = np.float32(1) / factor if divides else factor
    factor_value = 1.0 / np.float64(stored) if divides else np.float64(stored)
    tensors = {
        data_name: torch.from_numpy(data),
        "weight_scale": torch.from_numpy(scale_codes).view(torch.float8_e4m3fn),
        factor_name: torch.tensor([stored] if divides else stored),
    }
    if not divides:
        tensors["input_scale"] = torch.tensor(0.5)
    values = E2M1[codes] * spread(E4M3[scale_codes], 16, width) * factor_value
    return Written(tensors, values)
