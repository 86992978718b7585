"""Tokens are chosen from the stated distribution, and reproducibly."""

from __future__ import annotations

import math

import pytest
import torch

from gnomon.engine.errors import NumericsError
from gnomon.engine.runner.sampler import Draw, derive_seed, sample, uniform
from gnomon.engine.scheduler.request import SamplingParams


def draw(position: int = 0, seed: int = 0, **sampling: float) -> Draw:
    return Draw("r", SamplingParams(**sampling), seed, position)  # type: ignore[arg-type]


def frequencies(logits: list[float], n: int = 4000, **sampling: float) -> list[float]:
    """Share of each token over n positions of one seeded request."""
    rows = torch.tensor([logits]).expand(n, -1)
    tokens = sample(rows, [draw(position, seed=7, **sampling) for position in range(n)])
    return (torch.bincount(torch.tensor(tokens), minlength=len(logits)) / n).tolist()


def chi_square(observed: list[float], expected: list[float], n: int = 4000) -> float:
    return sum(n * (o - e) ** 2 / e for o, e in zip(observed, expected, strict=True) if e > 0)


PROBS = [0.4, 0.3, 0.15, 0.1, 0.05]
LOGITS = [math.log(p) for p in PROBS]


def test_greedy_takes_the_lowest_id_among_equal_logits() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0], [2.0, 2.0, 2.0, 2.0], [0.0, -0.0, -1.0, 0.0]])
    assert sample(logits, [draw(temperature=0.0)] * 3) == [1, 0, 0]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, PROBS),
        ({"temperature": 0.5}, [p**2 / sum(q**2 for q in PROBS) for p in PROBS]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0, 0]),
        ({"top_k": 5}, PROBS),
        ({"top_k": 0}, PROBS),
        ({"top_k": 99}, PROBS),
        ({"top_p": 0.39}, [1, 0, 0, 0, 0]),
        ({"top_p": 0.41}, [4 / 7, 3 / 7, 0, 0, 0]),
        ({"top_p": 0.01}, [1, 0, 0, 0, 0]),
        ({"top_k": 2, "top_p": 0.5}, [1, 0, 0, 0, 0]),  # of what top_k left, 4/7 reach the mass
        ({"min_p": 0.3}, [0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85, 0, 0]),
        ({"min_p": 1.0}, [1, 0, 0, 0, 0]),
        ({"min_p": 0.3, "top_k": 2}, [4 / 7, 3 / 7, 0, 0, 0]),
        ({"top_k": 1}, [1, 0, 0, 0, 0]),
    ],
)
def test_tokens_follow_the_stated_distribution(
    sampling: dict[str, float], expected: list[float]
) -> None:
    observed = frequencies(LOGITS, **sampling)
    assert all(o == 0 for o, e in zip(observed, expected, strict=True) if e == 0)
    assert chi_square(observed, expected) < 23.5  # 1 in 10,000 at four degrees of freedom


def test_the_order_of_the_vocabulary_does_not_matter() -> None:
    shuffled = [LOGITS[i] for i in (3, 0, 4, 2, 1)]
    observed = frequencies(shuffled, top_p=0.8)
    expected = [0, 0.4 / 0.85, 0, 0.15 / 0.85, 0.3 / 0.85]
    assert observed[0] == 0
    assert observed[2] == 0
    assert chi_square(observed, expected) < 23.5


def test_top_k_keeps_exactly_k_of_equal_logits_and_those_with_the_lowest_ids() -> None:
    observed = frequencies([1.0] * 6, top_k=3)
    assert observed[3:] == [0, 0, 0]
    assert min(observed[:3]) > 0.3


@pytest.mark.parametrize("temperature", [0.001, 1e-6, 1e-20, 1e-45])
def test_a_tiny_temperature_is_greedy_and_never_overflows(temperature: float) -> None:
    logits = torch.tensor([[-3e4, 2e4, 1.9e4, 3e38], [5.0, -1.0, 5.5, 5.4]])
    for options in ({}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}):
        assert sample(logits, [draw(temperature=temperature, **options)] * 2) == [3, 2]


def test_a_huge_temperature_is_uniform() -> None:
    assert chi_square(frequencies(LOGITS, temperature=1e6), [0.2] * 5) < 23.5


def test_a_seeded_request_does_not_depend_on_its_neighbours() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 1000)
    mine = draw(position=11, seed=5, temperature=1.3)
    alone = sample(logits, [mine])
    neighbours = [
        draw(temperature=0.0), draw(top_p=0.5, seed=9), draw(top_k=3), draw(min_p=0.2), draw(seed=1)
    ]  # fmt: skip
    for neighbour in neighbours:
        batch = torch.cat([torch.randn(1, 1000), logits, torch.randn(1, 1000)])
        assert sample(batch, [neighbour, mine, neighbour])[1:2] == alone


def test_seed_and_position_fix_the_number_and_either_changes_it() -> None:
    assert uniform(3, 4) == uniform(3, 4)
    numbers = [uniform(seed, position) for seed in range(50) for position in range(50)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= u < 1 for u in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.02
    assert uniform(-1, 0) != uniform(1, 0)
    assert uniform(2**80, 0) != uniform(0, 0)


def test_requests_without_a_seed_differ_but_repeat_with_the_engine_s_seed() -> None:
    assert derive_seed(0, 1) == derive_seed(0, 1)
    assert len({derive_seed(engine, arrival) for engine in range(9) for arrival in range(9)}) == 81


@pytest.mark.parametrize("bad", [[math.nan, 1.0], [-math.inf, -math.inf], [math.inf, 0.0]])
def test_logits_that_are_not_finite_are_an_error_that_names_the_request(bad: list[float]) -> None:
    with pytest.raises(NumericsError, match=r"r at position 3\b"):
        sample(torch.tensor([[0.0, 1.0], bad]), [draw(2), draw(3, temperature=0.0)])


def test_a_masked_token_is_never_chosen() -> None:
    observed = frequencies([0.0, -math.inf, 0.0])
    assert observed[1] == 0
    assert frequencies([0.0, -math.inf, 0.0], top_p=1 - 1e-9)[1] == 0
