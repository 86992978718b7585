"""A row of a product has the same bits whatever rows are beside it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.engine import row_tiles
from gnomon.engine.row_tiles import linear, multiply, multiply_groups, tiling_for

SHAPES = [(256, 320), (512, 64), (128, 128), (100, 60), (33, 7), (64, 1)]
DTYPES = [torch.float32, torch.bfloat16]


def operands(
    rows: int, shape: tuple[int, int], dtype: torch.dtype, transposed: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(rows)
    x = torch.randn((rows, shape[0]), generator=source).to(dtype)
    matrix = torch.randn(shape[::-1], generator=source).to(dtype).t()
    return x, matrix if transposed else matrix.contiguous()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_any_number_of_rows_gives_each_row_the_same_bits(
    shape: tuple[int, int], dtype: torch.dtype, transposed: bool
) -> None:
    x, matrix = operands(300, shape, dtype, transposed)
    whole = multiply(x, matrix)
    torch.testing.assert_close(whole.float(), x.float() @ matrix.float(), rtol=2e-2, atol=2e-2)
    for start, stop in ((0, 1), (5, 6), (299, 300), (1, 4), (7, 24), (100, 228), (3, 290), (9, 9)):
        assert torch.equal(multiply(x[start:stop], matrix), whole[start:stop])


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.booleans(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_groups_have_the_bits_of_their_rows_alone(
    counts: list[int], transposed: bool, stacked: bool
) -> None:
    bounds = [sum(counts[:at]) for at in range(len(counts) + 1)]
    rows, _ = operands(bounds[-1], (128, 32), torch.float32, transposed)
    pairs = [operands(at + 1, (128, 32), torch.float32, transposed)[1] for at in range(len(counts))]
    stack = torch.stack([m.t() for m in pairs]).mT if transposed else torch.stack(pairs)
    out = torch.full((bounds[-1], 32), torch.nan)
    multiply_groups(rows, bounds, stack if stacked else pairs.__getitem__, out)
    for group, matrix in enumerate(pairs):
        for at in range(bounds[group], bounds[group + 1]):
            assert torch.equal(out[at : at + 1], multiply(rows[at : at + 1], matrix))


def test_a_row_of_garbage_stays_in_its_row() -> None:
    x, matrix = operands(10, (128, 64), torch.float32, transposed=True)
    clean = multiply(x, matrix)
    x[4] = torch.nan
    x[7] = torch.inf
    dirty = multiply(x, matrix)
    kept = [0, 1, 2, 3, 5, 6, 8, 9]
    assert torch.equal(dirty[kept], clean[kept])


def test_linear_multiplies_with_the_transpose() -> None:
    x, matrix = operands(5, (64, 48), torch.float32, transposed=True)
    assert torch.equal(linear(x, matrix.t()), multiply(x, matrix))


def test_other_devices_than_cpus_are_not_cut() -> None:
    assert tiling_for(torch.empty((8, 8), device="meta")).small == 0


def test_where_a_row_depends_on_its_place_no_row_shares_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def uneven(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        product = torch.matmul(a, b) + torch.arange(len(a)).unsqueeze(1)
        return product if out is None else out.copy_(product)

    x, matrix = operands(150, (48, 24), torch.float32, False)
    row_tiles._compared.cache_clear()
    monkeypatch.setattr(row_tiles.torch, "mm", uneven)
    try:
        found = multiply(x, matrix)
    finally:
        row_tiles._compared.cache_clear()
    alone = torch.cat([torch.matmul(x[at : at + 1], matrix) for at in range(len(x))])
    assert torch.equal(found, alone)
