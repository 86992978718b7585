"""Bytes written out by hand, so that any other implementation can be held to them."""

from __future__ import annotations

import pytest
import torch

from gnomon.engine.layouts.base import Encoded
from gnomon.engine.layouts.geometry import geometry
from gnomon.engine.layouts.registry import layout_for
from gnomon.engine.options import CacheFormat

MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
EVERY_CODE = MAGNITUDES + [-m for m in MAGNITUDES]
EVERY_CODE_BYTES = "1032547698badcfe"
TINY = 2.0**-133  # smallest bf16 subnormal
HUGE = torch.finfo(torch.bfloat16).max


def layout(fmt: CacheFormat, dim: int, role: str = "kv"):
    return layout_for(geometry(fmt, 4, dim, role))


def filled(values: list[float], dim: int) -> torch.Tensor:
    """One token: the values, then zeros."""
    return torch.tensor(values + [0.0] * (dim - len(values)))


def hexes(encoded: Encoded) -> list[str]:
    return [bytes(region.flatten().tolist()).hex() for region in encoded.regions]


def fp4_hex(codes: str, dim: int) -> str:
    return codes + "0" * (dim - len(codes))


# values of one group of 32, data bytes (zeros follow), scale byte
MXFP4 = {
    "zeros": ([0.0] * 32, "", 0),
    "a group of negative zeros is a zero group": ([-0.0] * 32, "", 0),
    "negative zero keeps its sign beside a value": ([6.0, -0.0], "87", 127),
    "every code": (EVERY_CODE, EVERY_CODE_BYTES, 127),
    "every code, scaled by 2^20": ([v * 2**20 for v in EVERY_CODE], EVERY_CODE_BYTES, 147),
    "every code, scaled by 2^-100": ([v * 2**-100 for v in EVERY_CODE], EVERY_CODE_BYTES, 27),
    "ties go to the even code": ([6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], "07224466", 127),
    "negative ties too": ([6, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5], "87aaccee", 127),
    "a negative value that rounds to zero keeps its sign": ([6, -0.125], "87", 127),
    "amax 6 is the last of its scale": ([6.0], "07", 127),
    "the next bf16 takes the next scale": ([6.03125], "05", 128),
    "the bf16 before stays": ([5.96875], "07", 127),
    "rounding to bf16 comes first": ([6.0 + 2**-8], "07", 127),
    "amax 1": ([1.0], "06", 125),
    "amax 2": ([2.0], "06", 126),
    "amax 3 is on the boundary": ([3.0], "07", 126),
    "amax 4": ([4.0], "06", 127),
    "smallest amax of a normal quotient": ([6 * 2.0**-126], "07", 1),
    "subnormal quotient": ([6 * 2.0**-127], "05", 1),
    "smallest bf16 subnormal": ([TINY], "", 1),
    "its negative": ([-TINY], "08", 1),
    "largest amax of scale 2^125": ([1.5 * 2.0**127], "07", 252),
    "the next bf16": ([(1.5 + 2.0**-7) * 2.0**127], "05", 253),
    "largest bf16": ([HUGE], "06", 253),
}


@pytest.mark.parametrize("case", MXFP4)
def test_mxfp4_bytes(case):
    values, codes, scale = MXFP4[case]
    encoded = layout(CacheFormat.MXFP4, 32).quantise(filled(values, 32))
    assert hexes(encoded) == [fp4_hex(codes, 32), f"{scale:02x}"]


# values of one group of 16, data bytes (zeros follow), e4m3 scale byte
NVFP4 = {
    "zeros": ([0.0] * 16, "", 0x01),
    "negative zeros": ([-0.0] * 16, "", 0x01),
    "negative zero is plain zero beside a value": ([6.0, -0.0], "07", 0x38),
    "every code": (EVERY_CODE, "1032547690badcfe", 0x38),
    "every code at scale 2^-6": ([v * 2**-6 for v in EVERY_CODE], "1032547690badcfe", 0x08),
    "ties go to the even code": ([6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], "07224466", 0x38),
    "negative ties too": ([6, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5], "07aaccee", 0x38),
    "a negative value that rounds to zero is plain zero": ([6, -0.125], "07", 0x38),
    "scale rounded down, value saturates": ([6.25], "07", 0x38),
    "scale tie goes to the even e4m3": ([6 * 1.0625], "07", 0x38),
    "scale rounded up": ([6.5], "07", 0x39),
    "largest scale": ([2688.0], "07", 0x7E),
    "saturation past the largest scale": ([HUGE, -HUGE, 448.0], "f702", 0x7E),
    "smallest scale": ([6 * 2.0**-9], "07", 0x01),
    "below the smallest scale": ([2.0**-10, 2.0**-11, -TINY], "01", 0x01),
    "subnormal scale rounds to even": ([9 * 2.0**-9], "06", 0x02),
}


@pytest.mark.parametrize("case", NVFP4)
def test_nvfp4_bytes(case):
    values, codes, scale = NVFP4[case]
    encoded = layout(CacheFormat.NVFP4, 16).quantise(filled(values, 16))
    assert hexes(encoded) == [fp4_hex(codes, 16), f"{scale:02x}"]


# four values, element bytes, fp32 scale
FP8_TOKEN = {
    "zeros have scale 1": ([0.0, -0.0, 0.0, 0.0], "00800000", 1.0),
    "amax 448 has scale 1": ([448.0, 1.0, -1.0, 0.5], "7e38b830", 1.0),
    "the largest element is always 448": ([3.0, -3.0, 1.5, 0.0], "7efe7600", 3.0 / 448),
    "ties go to even": ([448.0, 17.0, 19.0, -17.0], "7e585ad8", 1.0),
    "the scale stays a normal fp32": ([2.0**-126, 2.0**-130, 0, 0], "38180000", 2.0**-126),
}


@pytest.mark.parametrize("case", FP8_TOKEN)
def test_fp8_bytes_of_keys_and_values(case):
    values, codes, scale = FP8_TOKEN[case]
    encoded = layout(CacheFormat.FP8, 4).quantise(torch.tensor(values))
    data, scale_bytes = encoded.regions
    assert bytes(data.tolist()).hex() == codes
    assert scale_bytes.view(torch.float32).item() == torch.tensor(scale).item()


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ([0.0, -0.0, 1.0, -1.0], "008038b8"),
        ([448.0, 464.0, 1e9, -1e9], "7e7e7efe"),
        ([2.0**-9, 2.0**-10, 3 * 2.0**-10, -(2.0**-9)], "01000281"),
    ],
)
def test_fp8_bytes_of_index_keys_at_unit_scale(values, codes):
    encoded = layout(CacheFormat.FP8, 4, "index").quantise(torch.tensor(values))
    assert hexes(encoded) == [codes]


def test_bf16_and_fp32_bytes_are_little_endian():
    values = torch.tensor([1.0, -2.0, 0.0, -0.0])
    assert hexes(layout(CacheFormat.BF16, 4).quantise(values)) == ["803f00c000000080"]
    assert hexes(layout(CacheFormat.FP32, 4).quantise(values)) == [
        "0000803f000000c00000000000000080"
    ]


@pytest.mark.parametrize("byte", range(256))
def test_every_e8m0_byte_reads_the_same_in_bf16_and_fp32(byte):
    mxfp4 = layout(CacheFormat.MXFP4, 32)
    codes = torch.tensor([list(bytes.fromhex(EVERY_CODE_BYTES)) * 2], dtype=torch.uint8)
    encoded = Encoded((codes, torch.tensor([[byte]], dtype=torch.uint8)))
    wide = mxfp4.dequantise(encoded, torch.float32)
    narrow = mxfp4.dequantise(encoded, torch.bfloat16)
    assert torch.equal(wide.isnan(), narrow.isnan())
    assert torch.equal(wide.nan_to_num(1.0), narrow.float().nan_to_num(1.0))
    if byte == 255:
        assert wide.isnan().all()
    else:
        exact = torch.tensor(EVERY_CODE * 2, dtype=torch.float64) * 2.0 ** (byte - 127)
        assert torch.equal(wide[0].double(), exact.clamp(-HUGE, HUGE))
        assert torch.equal(torch.signbit(wide[0]), torch.signbit(exact))


@pytest.mark.parametrize("byte", [b for b in range(256) if b & 0x7F != 0x7F])
def test_every_e4m3_scale_reads_exactly_in_bf16_and_fp32(byte):
    nvfp4 = layout(CacheFormat.NVFP4, 16)
    codes = torch.tensor([list(bytes.fromhex(EVERY_CODE_BYTES))], dtype=torch.uint8)
    scale = torch.tensor([[byte]], dtype=torch.uint8)
    exact = torch.tensor(EVERY_CODE).double() * scale.view(torch.float8_e4m3fn).double()
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(
            nvfp4.dequantise(Encoded((codes, scale)), dtype).double(), exact.reshape(1, 16)
        )
