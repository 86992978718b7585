"""Operand order of 4-bit index keys: golden bytes, and that nothing is lost."""

from __future__ import annotations

import pytest
import torch

from gnomon.engine.layouts.geometry import geometry
from gnomon.engine.layouts.order import arrange, restore
from gnomon.engine.layouts.registry import layout_for
from gnomon.engine.options import CacheFormat

# Row-major byte (even element's code in the low nibble) to operand byte.
BYTES = {
    0x00: 0x00, 0x01: 0x04, 0x07: 0x1C, 0x08: 0x80, 0x0F: 0x9C, 0x10: 0x01, 0x20: 0x02,
    0x40: 0x40, 0x70: 0x43, 0x80: 0x20, 0xF0: 0x63, 0xFF: 0xFF, 0x21: 0x06, 0x9A: 0xA9,
}  # fmt: skip


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
    assert geometry(CacheFormat.MXFP4, 16, 128, "kv").order == "row_major"
    assert geometry(CacheFormat.FP8, 16, 128, "index").order == "row_major"
