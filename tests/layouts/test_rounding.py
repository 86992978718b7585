"""What is stored is as near to what came as the format allows, for every finite bf16 input.

Everything is checked in float64, where these numbers and their differences are exact.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.engine.layouts.geometry import geometry
from gnomon.engine.layouts.registry import layout_for
from gnomon.engine.options import CacheFormat

HUGE = torch.finfo(torch.bfloat16).max
GRID = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
GROUP = {CacheFormat.MXFP4: 32, CacheFormat.NVFP4: 16}


def bf16_of_bits(bits: list[int]) -> torch.Tensor:
    return torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def all_finite_bf16() -> torch.Tensor:
    x = bf16_of_bits(list(range(-32768, 32768)))
    return x[x.isfinite()]


finite_bits = st.integers(0, 0x7F7F).flatmap(lambda b: st.sampled_from([b, b - 0x8000]))
# Groups whose members are within a few octaves of each other, where the grid matters most.
near_bits = st.integers(0x0400, 0x7F7F - 0x0200).flatmap(
    lambda base: st.lists(
        st.integers(base - 0x0300, base + 0x0200).flatmap(
            lambda b: st.sampled_from([b, b - 0x8000])
        ),
        min_size=32,
        max_size=32,
    )
)
groups = st.one_of(st.lists(finite_bits, min_size=32, max_size=32), near_bits)


def witnesses() -> torch.Tensor:
    """Every finite bf16 as the largest of a group, beside fractions of it: [n, 32]."""
    fractions = torch.linspace(-1, 1, 31)
    largest = all_finite_bf16().float()
    return torch.cat((largest[:, None], largest[:, None] * fractions), dim=1).bfloat16()


def check_fp4(fmt: CacheFormat, x: torch.Tensor) -> None:
    """x: finite bf16 [n, 32]."""
    layout = layout_for(geometry(fmt, 1, 32, "kv"))
    encoded = layout.quantise(x)
    got = layout.dequantise(encoded).double().view(len(x), -1, GROUP[fmt])
    given_x = x.double().view_as(got)
    if fmt is CacheFormat.MXFP4:
        scale = torch.pow(2.0, encoded.regions[1].double() - 127)[..., None]
    else:
        scale = encoded.regions[1].view(torch.float8_e4m3fn).double()[..., None]
    error = (given_x - got).abs()

    reachable = (scale[..., None] * GRID).clamp(max=HUGE)
    nearest = (given_x.abs()[..., None] - reachable).abs().amin(-1)
    assert torch.equal(error, nearest), "a nearer code exists"

    in_steps = given_x.abs() / scale
    step = torch.where(in_steps <= 2, 0.5, torch.where(in_steps <= 4, 1.0, 2.0)) * scale
    inside = in_steps <= 7  # 6 is the last code; half of the last step lies beyond it
    assert (error <= step / 2)[inside].all(), "more than half a step away"
    if fmt is CacheFormat.MXFP4:
        assert (in_steps <= 6).all(), "RCEIL never clips"
    else:
        check_where_nvfp4_saturates(given_x, inside)


def check_where_nvfp4_saturates(x: torch.Tensor, inside: torch.Tensor) -> None:
    """Beyond 3,136, and in two slivers where the subnormal e4m3 scale is rounded down."""
    amax = x.abs().amax(-1)[~inside.all(-1)]
    units = amax * 2.0**9
    sliver = ((units > 7) & (units < 9)) | ((units > 14) & (units <= 15))
    assert ((amax > 7 * 448) | sliver).all()


@pytest.mark.parametrize("fmt", GROUP)
def test_every_finite_bf16_is_within_half_a_step_of_its_group(fmt):
    for x in witnesses().split(8192):
        check_fp4(fmt, x)


@pytest.mark.parametrize("fmt", GROUP)
@settings(max_examples=200, deadline=None)
@given(bits=groups)
def test_every_member_of_a_group_is_within_half_a_step(fmt, bits):
    check_fp4(fmt, bf16_of_bits(bits)[None])


def check_fp8(role: str, x: torch.Tensor) -> None:
    """x: finite bf16 [n, 32]."""
    layout = layout_for(geometry(CacheFormat.FP8, 1, 32, role))
    encoded = layout.quantise(x)
    scale = torch.ones(())
    if role == "kv":
        scale = encoded.regions[1].view(torch.float32).double()
    error = (x.double() - layout.dequantise(encoded).double()).abs()
    in_steps = x.double().abs() / scale
    exponent = torch.floor(torch.log2(in_steps.clamp(min=2.0**-6))).clamp(max=8)
    half_step = torch.pow(2.0, exponent - 3) / 2 * scale
    inside = in_steps <= 464  # 448, and half of its step beyond
    # The quotient and the product are fp32: one part in 2^22 covers both roundings.
    allowed = half_step * (1 + 2.0**-22) + x.double().abs() * 2.0**-22
    assert (error <= allowed)[inside].all()
    if role == "kv":
        assert inside.all()
    else:
        assert (x.double().abs()[~inside] > 464).all()
        assert (layout.dequantise(encoded).abs()[~inside] == 448).all()


@pytest.mark.parametrize("role", ["kv", "index"])
def test_every_finite_bf16_is_within_half_an_e4m3_step(role):
    for x in witnesses().split(8192):
        check_fp8(role, x)


@pytest.mark.parametrize("role", ["kv", "index"])
@settings(max_examples=200, deadline=None)
@given(bits=groups)
def test_every_member_of_a_token_is_within_half_an_e4m3_step(role, bits):
    check_fp8(role, bf16_of_bits(bits)[None])


@pytest.mark.parametrize("fmt", [CacheFormat.FP32, CacheFormat.BF16])
def test_plain_formats_keep_every_finite_bf16(fmt):
    x = all_finite_bf16()[None]
    layout = layout_for(geometry(fmt, 1, x.shape[1], "kv"))
    got = layout.dequantise(layout.quantise(x), torch.bfloat16)
    assert torch.equal(got.view(torch.int16), x.view(torch.int16))


@pytest.mark.parametrize("fmt", CacheFormat)
def test_quantising_what_was_read_changes_nothing_more(fmt):
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)) * 3
    layout = layout_for(geometry(fmt, 1, 32, "index"))
    once = layout.dequantise(layout.quantise(x))
    assert torch.equal(layout.dequantise(layout.quantise(once)), once)
