"""Where bytes go, how they come back, and what happens to NaN and Inf."""

from __future__ import annotations

import math

import pytest
import torch

from gnomon.engine.errors import NonFiniteCacheInput
from gnomon.engine.layouts.geometry import geometry
from gnomon.engine.layouts.registry import layout_for
from gnomon.engine.options import CacheFormat

EVERY_FIELD = [(fmt, role) for fmt in CacheFormat for role in ("kv", "index")]
every_field = pytest.mark.parametrize(("fmt", "role"), EVERY_FIELD)
NAN, INF = math.nan, math.inf


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def make(fmt: CacheFormat, role: str, tokens: int = 16, dim: int = 64):
    return layout_for(geometry(fmt, tokens, dim, role))


def empty_pages(layout, n: int, fill: int = 0) -> torch.Tensor:
    return torch.full((n, layout.geometry.page_bytes), fill, dtype=torch.uint8)


@every_field
def test_tokens_come_back_from_where_they_were_stored(fmt, role):
    layout = make(fmt, role)
    pages = empty_pages(layout, 3)
    x = random(5, 64)
    page, offset = torch.tensor([2, 0, 2, 1, 0]), torch.tensor([15, 0, 3, 7, 1])
    layout.store(pages, page, offset, layout.quantise(x))
    read = layout.dequantise(layout.load(pages))
    assert torch.equal(read[page, offset], layout.dequantise(layout.quantise(x)))


@every_field
def test_storing_a_token_touches_no_other_byte(fmt, role):
    layout = make(fmt, role)
    pages = empty_pages(layout, 2, fill=0xA5)
    layout.store(pages, torch.tensor([1]), torch.tensor([4]), layout.quantise(random(1, 64)))
    changed = torch.zeros_like(pages, dtype=torch.bool)
    for region in layout.geometry.regions:
        start = region.offset + 4 * region.token_bytes
        changed[1, start : start + region.token_bytes] = True
    assert (pages == 0xA5)[~changed].all()


@every_field
def test_row_major_order_is_one_conversion_away(fmt, role):
    layout = make(fmt, role)
    row_major = torch.randint(0, 256, (3, layout.geometry.page_bytes), dtype=torch.uint8)
    pages = layout.from_row_major(row_major)
    assert torch.equal(layout.to_row_major(pages), row_major)
    x = random(16, 64)
    encoded = layout.quantise(x)
    stored = empty_pages(layout, 1)
    layout.store(stored, torch.zeros(16, dtype=torch.int64), torch.arange(16), encoded)
    plain = torch.cat([region.flatten() for region in encoded.regions])
    assert torch.equal(layout.to_row_major(stored)[0], plain)


def test_mxfp4_puts_element_d_of_token_t_at_its_documented_byte():
    layout = make(CacheFormat.MXFP4, "kv", tokens=128, dim=128)
    for token, dim in [(0, 0), (0, 1), (1, 0), (77, 100), (127, 127)]:
        x = torch.zeros(128)
        x[dim] = 6.0
        pages = empty_pages(layout, 1)
        layout.store(pages, torch.tensor([0]), torch.tensor([token]), layout.quantise(x[None]))
        expected = torch.zeros(8704, dtype=torch.uint8)
        expected[token * 64 + dim // 2] = 0x70 if dim % 2 else 0x07
        expected[8192 + token * 4 + dim // 32] = 127
        assert torch.equal(pages[0], expected)


def test_nvfp4_puts_element_d_of_token_t_at_its_documented_byte():
    layout = make(CacheFormat.NVFP4, "kv", tokens=128, dim=128)
    for token, dim in [(0, 0), (0, 1), (1, 0), (77, 100), (127, 127)]:
        x = torch.zeros(128)
        x[dim] = 6.0
        pages = empty_pages(layout, 1)
        layout.store(pages, torch.tensor([0]), torch.tensor([token]), layout.quantise(x[None]))
        expected = torch.zeros(9216, dtype=torch.uint8)
        expected[token * 64 + dim // 2] = 0x70 if dim % 2 else 0x07
        expected[8192 + token * 8 : 8192 + token * 8 + 8] = 0x01
        expected[8192 + token * 8 + dim // 16] = 0x38
        assert torch.equal(pages[0], expected)


@every_field
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_the_strict_check_refuses_what_is_not_finite(fmt, role, bad):
    x = random(3, 64)
    x[1, 5] = bad
    with pytest.raises(NonFiniteCacheInput, match="1 of 192 values"):
        make(fmt, role).quantise(x, strict=True)


@every_field
def test_production_counts_and_replaces_what_is_not_finite(fmt, role):
    layout = make(fmt, role)
    x = random(3, 64)
    x[0, 1], x[0, 40], x[2, 63] = NAN, -INF, INF
    count = torch.zeros((), dtype=torch.int64)
    read = layout.dequantise(layout.quantise(x, sanitised=count))
    assert count.item() == 3
    assert read.isfinite().all()


@every_field
def test_what_is_not_finite_leaves_its_neighbours_alone(fmt, role):
    layout = make(fmt, role)
    clean = random(1, 64)
    clean[0, 5] = 0.0
    dirty = clean.clone()
    dirty[0, 5] = NAN
    expected = layout.dequantise(layout.quantise(clean))
    got = layout.dequantise(layout.quantise(dirty))
    others = torch.arange(64) != 5
    assert torch.equal(got[:, others], expected[:, others])


@pytest.mark.parametrize(
    ("fmt", "role", "largest"),
    [
        (CacheFormat.FP32, "kv", torch.finfo(torch.float32).max),
        (CacheFormat.BF16, "kv", torch.finfo(torch.bfloat16).max),
        (CacheFormat.FP8, "index", 448.0),
        (CacheFormat.FP8, "kv", 448.0),  # the token's amax is 448, so its scale is 1
        (CacheFormat.MXFP4, "kv", 384.0),  # amax 384 = 6 * 64
        (CacheFormat.NVFP4, "kv", 384.0),
    ],
)
def test_inf_becomes_the_largest_code_of_its_sign_and_nan_the_positive_one(fmt, role, largest):
    layout = make(fmt, role)
    amax = 448.0 if fmt is CacheFormat.FP8 else 384.0
    x = torch.full((1, 64), amax)
    x[0, :4] = torch.tensor([INF, -INF, NAN, -NAN])
    got = layout.dequantise(layout.quantise(x))[0, :4]
    assert got.tolist() == [largest, -largest, largest, largest]


@every_field
def test_a_token_of_nothing_finite_is_still_stored_finite(fmt, role):
    layout = make(fmt, role)
    read = layout.dequantise(layout.quantise(torch.full((2, 64), NAN)))
    assert read.isfinite().all()


def test_a_value_beyond_bf16_counts_as_infinite():
    layout = make(CacheFormat.MXFP4, "kv")
    count = torch.zeros((), dtype=torch.int64)
    layout.quantise(torch.full((1, 64), torch.finfo(torch.float32).max), sanitised=count)
    assert count.item() == 64


@every_field
def test_no_rows_are_legal(fmt, role):
    layout = make(fmt, role)
    encoded = layout.quantise(torch.zeros(0, 64))
    assert layout.dequantise(encoded).shape == (0, 64)


@every_field
def test_bf16_input_and_fp32_input_of_the_same_value_give_the_same_bytes(fmt, role):
    layout = make(fmt, role)
    x = random(4, 64).bfloat16()
    for a, b in zip(layout.quantise(x).regions, layout.quantise(x.float()).regions, strict=True):
        assert torch.equal(a, b)
