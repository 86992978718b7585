"""Operand orders of 4-bit pages: golden bytes, and that nothing is lost."""

from __future__ import annotations

import pytest
import torch

from gnomon.engine.layouts.geometry import geometry
from gnomon.engine.layouts.order import (
    arrange,
    arrange_values,
    restore,
    restore_values,
    value_code_places,
    value_scale_places,
)
from gnomon.engine.layouts.registry import layout_for
from gnomon.engine.options import CacheFormat

# Row-major byte (even element's code in the low nibble) to operand byte.
BYTES = {
    0x00: 0x00, 0x01: 0x04, 0x07: 0x1C, 0x08: 0x80, 0x0F: 0x9C, 0x10: 0x01, 0x20: 0x02,
    0x40: 0x40, 0x70: 0x43, 0x80: 0x20, 0xF0: 0x63, 0xFF: 0xFF, 0x21: 0x06, 0x9A: 0xA9,
}  # fmt: skip


# Codes of elements d and d + 8 of a token to the byte of values that holds them.
VALUE_BYTES = {
    (0, 0): 0x00, (1, 0): 0x02, (7, 0): 0x0E, (8, 0): 0x80, (15, 0): 0x8E, (0, 1): 0x10,
    (0, 4): 0x40, (0, 7): 0x70, (0, 8): 0x01, (0, 15): 0x71, (15, 15): 0xFF, (2, 1): 0x14,
    (10, 9): 0x95,
}  # fmt: skip
FP4 = pytest.mark.parametrize("fmt", [CacheFormat.MXFP4, CacheFormat.NVFP4])
CPU = torch.device("cpu")


@pytest.mark.parametrize(("plain", "stored"), BYTES.items())
def test_the_bits_of_a_byte(plain, stored):
    row = torch.zeros(1, 64, dtype=torch.uint8)
    row[0, 0] = plain
    assert arrange(row)[0, 0] == stored
    assert restore(arrange(row))[0, 0] == plain


@pytest.mark.parametrize("dim", [32, 64, 96, 128])
def test_the_words_of_a_row(dim):
    for byte in range(dim // 2):
        row = torch.zeros(dim // 2, dtype=torch.uint8)
        row[byte] = 1
        group, word, inside = byte // 16, byte % 16 // 4, byte % 4
        expected = torch.zeros(dim // 2, dtype=torch.uint8)
        expected[(word * (dim // 32) + group) * 4 + inside] = 4
        assert torch.equal(arrange(row), expected)


def test_every_byte_comes_back():
    rows = torch.arange(256).to(torch.uint8)[:, None].expand(256, 64)
    assert torch.equal(restore(arrange(rows)), rows)
    assert len({int(b) for b in arrange(rows)[:, 0]}) == 256


def test_a_masked_byte_is_an_e4m3_number():
    """What the order is for: both elements of a byte are e4m3, 2^-6 times the code's value."""
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    for code in range(256):
        stored = int(arrange(torch.full((16,), code, dtype=torch.uint8))[0])
        even = stored & 0x9C
        odd = (stored << 2 & 0x8C) | (stored >> 2 & 0x10)
        for byte, nibble in ((even, code & 15), (odd, code >> 4)):
            number = torch.tensor([byte], dtype=torch.uint8).view(torch.float8_e4m3fn).float()
            expected = values[nibble & 7] * (-1 if nibble & 8 else 1)
            assert number.item() * 64 == expected


@pytest.mark.parametrize("fmt", [CacheFormat.MXFP4, CacheFormat.NVFP4])
def test_index_pages_hold_their_codes_in_operand_order(fmt):
    operand, plain = (geometry(fmt, 128, 128, role) for role in ("index", "kv"))
    assert geometry(fmt, 128, 128, "key") == operand
    assert operand.page_bytes == plain.page_bytes
    x = torch.randn(128, 128, generator=torch.Generator().manual_seed(0))
    pages = []
    for page in (operand, plain):
        layout = layout_for(page)
        made = torch.zeros(1, page.page_bytes, dtype=torch.uint8)
        token = torch.arange(128)
        layout.store(made, torch.zeros_like(token), token, layout.quantise(x))
        pages.append(made)
        assert torch.equal(
            layout.dequantise(layout.load(made))[0], layout.dequantise(layout.quantise(x))
        )
    assert torch.equal(pages[0][0, :8192].view(128, 64), arrange(pages[1][0, :8192].view(128, 64)))
    assert torch.equal(pages[0][0, 8192:], pages[1][0, 8192:])


def test_a_dim_without_whole_groups_stays_row_major():
    assert geometry(CacheFormat.NVFP4, 16, 48, "index").order == "row_major"
    assert geometry(CacheFormat.MXFP4, 16, 96, "index").order == "operand"
    assert geometry(CacheFormat.MXFP4, 16, 128, "key").order == "operand"
    assert geometry(CacheFormat.MXFP4, 16, 128, "kv").order == "row_major"
    assert geometry(CacheFormat.MXFP4, 16, 128, "value").order == "row_major"
    assert geometry(CacheFormat.MXFP4, 32, 128, "value").order == "value"
    assert geometry(CacheFormat.NVFP4, 32, 48, "value").order == "row_major"
    assert geometry(CacheFormat.BF16, 128, 128, "value").order == "row_major"
    assert geometry(CacheFormat.FP8, 16, 128, "index").order == "row_major"


@pytest.mark.parametrize(("codes", "stored"), VALUE_BYTES.items())
def test_the_bits_of_a_byte_of_values(codes, stored):
    row = torch.zeros(1, 64, dtype=torch.uint8)
    row[0, 8], row[0, 12] = codes[0], codes[1]  # elements 16 and 24
    arranged = arrange_values(row)
    assert arranged[0, 8] == stored
    assert torch.equal(restore_values(arranged), row)


def test_every_byte_of_values_comes_back():
    rows = torch.randint(0, 256, (50, 64), dtype=torch.uint8)
    assert torch.equal(restore_values(arrange_values(rows)), rows)


def test_a_masked_byte_of_values_is_half_an_fp16_number():
    """What the order is for: upper bytes of fp16 numbers, 2^-14 times the elements."""
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    for (a, b), stored in VALUE_BYTES.items():
        first = stored & 0x8E
        second = (stored << 7 & 0x80) | (stored >> 3 & 0x0E)
        for byte, code in ((first, a), (second, b)):
            half = torch.tensor([0, byte], dtype=torch.uint8).view(torch.float16).double()
            assert half.item() * 2**14 == values[code & 7] * (-1 if code & 8 else 1)


@pytest.mark.parametrize(("tokens", "dim"), [(32, 32), (128, 128), (64, 96)])
def test_places_of_values_are_all_different_and_as_documented(tokens, dim):
    codes, scales = (f(tokens, n, CPU) for f, n in
                     ((value_code_places, dim // 2), (value_scale_places, dim // 16)))  # fmt: skip
    assert sorted(codes.flatten().tolist()) == list(range(tokens * dim // 2))
    assert sorted(scales.flatten().tolist()) == list(range(tokens * dim // 16))
    k, h, t, o, w, i, g = 1, 1, 3, 0, dim // 32 - 1, 1, 5
    token = 16 * k + 8 * h + 2 * t + o
    byte = 16 * w + 8 * i + g  # of the token: elements 32 w + 16 i + g and + 8
    at = 16 * tokens * w + 512 * (k // 2) + 64 * g + 16 * t + 8 * (k % 2) + 4 * i + 2 * o + h
    assert codes[token, byte] == at
    assert scales[token, 1] == tokens + tokens // 4 * t + 4 * k + 2 * h + o


@FP4
def test_value_pages_read_as_row_major_ones(fmt):
    order, plain = (geometry(fmt, 128, 128, role) for role in ("value", "kv"))
    assert order.page_bytes == plain.page_bytes
    assert order.name == f"{plain.name}_value"
    x = torch.randn(128, 128, generator=torch.Generator().manual_seed(0))
    token = torch.randperm(128, generator=torch.Generator().manual_seed(1))
    read = []
    for page in (order, plain):
        layout = layout_for(page)
        made = torch.full((2, page.page_bytes), 0xA5, dtype=torch.uint8)
        for part in token.split(50):
            layout.store(made, torch.ones_like(part), part, layout.quantise(x[part]))
        assert (made[0] == 0xA5).all()
        read.append((layout.dequantise(layout.load(made))[1], layout.to_row_major(made)[1]))
    assert torch.equal(read[0][0], read[1][0])
    assert torch.equal(read[0][1], read[1][1])


@FP4
def test_storing_a_value_touches_its_own_bytes_alone(fmt):
    layout = layout_for(geometry(fmt, 128, 128, "value"))
    before = torch.randint(0, 256, (1, layout.geometry.page_bytes), dtype=torch.uint8)
    after = before.clone()
    one = torch.tensor([77])
    layout.store(after, torch.zeros_like(one), one, layout.quantise(torch.randn(1, 128)))
    a, b = (layout.load(pages).regions for pages in (before, after))
    others = torch.arange(128) != 77
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x[:, others], y[:, others])
