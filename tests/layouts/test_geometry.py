"""Bytes of pages and prices of blocks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gnomon.engine.errors import LayoutError
from gnomon.engine.layouts.geometry import LayerPages, geometry
from gnomon.engine.memory import block_bytes
from gnomon.engine.options import CacheFormat

BF16, FP8, MXFP4, NVFP4 = (
    CacheFormat.BF16,
    CacheFormat.FP8,
    CacheFormat.MXFP4,
    CacheFormat.NVFP4,
)
EVERY_FIELD = [(fmt, role) for fmt in CacheFormat for role in ("kv", "index")]


def pages(fmt: CacheFormat, index: CacheFormat | None, heads: int = 1) -> LayerPages:
    kv = geometry(fmt, 128, 128, "kv")
    return LayerPages(heads, kv, kv, index and geometry(index, 128, 128, "index"))


@pytest.mark.parametrize(
    ("fmt", "role", "expected"),
    [
        (CacheFormat.FP32, "kv", 65536),
        (BF16, "kv", 32768),
        (BF16, "index", 32768),
        (FP8, "kv", 128 * 128 + 128 * 4),
        (FP8, "index", 128 * 128),
        (MXFP4, "kv", 8704),
        (MXFP4, "index", 8704),
        (NVFP4, "kv", 9216),
        (NVFP4, "index", 9216),
    ],
)
def test_a_page_of_128_by_128_has_the_published_size(fmt, role, expected):
    assert geometry(fmt, 128, 128, role).page_bytes == expected


@pytest.mark.parametrize(
    ("target", "draft", "expected"),
    [
        ((MXFP4, MXFP4), None, 1_566_720),
        ((NVFP4, NVFP4), None, 1_658_880),
        ((FP8, FP8), None, 3_010_560),
        ((BF16, BF16), None, 5_898_240),
        ((BF16, MXFP4), None, 4_454_400),
        ((FP8, MXFP4), None, 2_549_760),
        ((MXFP4, MXFP4), BF16, 1_894_400),
        ((FP8, FP8), FP8, 3_179_520),
    ],
)
def test_sixty_sparse_layers_cost_the_published_bytes_a_block(target, draft, expected):
    layers = [pages(*target)] * 60
    if draft is not None:
        layers += [pages(draft, None)] * 5
    assert block_bytes(layers) == expected


def test_four_kv_heads_share_one_index_page():
    assert block_bytes([pages(MXFP4, MXFP4, heads=4)] * 60) == 4_700_160


def test_a_layer_without_an_index_page_pays_for_none():
    assert pages(MXFP4, MXFP4).block_bytes - pages(MXFP4, None).block_bytes == 8704


@pytest.mark.parametrize(("fmt", "role"), EVERY_FIELD)
@pytest.mark.parametrize(("tokens", "dim"), [(128, 128), (16, 32), (1, 64), (3, 96)])
def test_regions_tile_the_page_in_order(fmt, role, tokens, dim):
    page = geometry(fmt, tokens, dim, role)
    assert page.regions[0].offset == 0
    for left, right in pairwise(page.regions):
        assert left.offset + left.nbytes == right.offset
    assert page.regions[-1].offset + page.regions[-1].nbytes == page.page_bytes
    assert all(r.shape[0] == tokens and r.token_bytes * tokens == r.nbytes for r in page.regions)


@pytest.mark.parametrize(("fmt", "role"), EVERY_FIELD)
def test_served_pages_stay_512_byte_aligned(fmt, role):
    assert geometry(fmt, 128, 128, role).alignment >= 512


def test_different_pages_never_share_a_name():
    shapes = [(128, 128), (16, 128), (128, 64)]
    found: dict[str, tuple[object, ...]] = {}
    for fmt, role in EVERY_FIELD:
        for tokens, dim in shapes:
            page = geometry(fmt, tokens, dim, role)
            assert found.setdefault(page.name, page.regions) == page.regions


@pytest.mark.parametrize(
    ("fmt", "dim", "multiple"), [(MXFP4, 48, 32), (NVFP4, 24, 16), (FP8, 6, 4), (BF16, 0, 1)]
)
def test_a_dim_that_does_not_fill_its_groups_is_refused(fmt, dim, multiple):
    with pytest.raises(LayoutError, match=rf"multiple of {multiple}; choose another"):
        geometry(fmt, 128, dim, "kv")


def test_an_unknown_region_is_an_error_that_names_the_layout():
    with pytest.raises(KeyError, match="bf16_128x128 has no region 'scale'"):
        geometry(BF16, 128, 128, "kv").region("scale")
