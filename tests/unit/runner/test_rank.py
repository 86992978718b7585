"""Choosing tokens from a part of the vocabulary is choosing them from all of it, sorted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.engine.runner.rank import largest
from gnomon.engine.runner.sampler import Draw, sample, uniform
from gnomon.engine.scheduler.request import SamplingParams


@given(
    st.lists(st.sampled_from([-2.5, -0.0, 0.0, 1.0, 1.5, 3e38]), min_size=1, max_size=40),
    st.integers(1, 40),
)
@settings(max_examples=200, deadline=None)
def test_the_largest_are_the_beginning_of_a_stable_sort(row: list[float], count: int) -> None:
    count = min(count, len(row))
    logits = torch.tensor([row, row[::-1]])
    values, ids = largest(logits, count)
    whole = logits.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(values, whole.values[:, :count])
    assert torch.equal(ids, whole.indices[:, :count])


def sorted_sample(row: torch.Tensor, draw: Draw) -> int:
    """The rule, over the whole vocabulary in order."""
    sampling = draw.sampling
    values, ids = row.sort(descending=True, stable=True)
    weights = ((values - values[0]) / sampling.temperature).double().exp()
    weights[weights < sampling.min_p] = 0.0
    total = weights.sum()
    if 0 < sampling.top_k < len(row):
        weights[sampling.top_k :] = 0.0
        total = weights.sum()
    before = weights.cumsum(0) - weights
    kept = before < sampling.top_p * total
    kept[0] = True
    weights[~kept] = 0.0
    mass = weights.cumsum(0)
    rank = int((mass <= uniform(draw.seed, draw.position) * mass[-1]).sum())
    return int(ids[min(rank, int(weights.nonzero().max()))])


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_k": 1}, {"top_k": 40}, {"top_k": 2999}, {"top_p": 0.1}, {"top_p": 0.95},
        {"top_p": 0.9999999}, {"top_k": 500, "top_p": 0.7}, {"top_p": 0.8, "min_p": 0.01},
        {"top_k": 60, "min_p": 0.05, "temperature": 0.3}, {"top_p": 0.5, "temperature": 2.0},
    ],
)  # fmt: skip
@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
def test_a_cut_vocabulary_is_sampled_as_if_it_were_sorted(
    sampling: dict[str, float], spread: float
) -> None:
    source = torch.Generator().manual_seed(1)
    logits = torch.randn((40, 3000), generator=source) * spread
    logits[::2] = logits[::2].round()  # with equal values
    logits[5, 100:] = -torch.inf
    params = SamplingParams(**{"temperature": 1.0, **sampling})  # type: ignore[arg-type]
    draws = [Draw("r", params, 3, position) for position in range(len(logits))]
    expected = [sorted_sample(row, draw) for row, draw in zip(logits, draws, strict=True)]
    assert sample(logits, draws) == expected
