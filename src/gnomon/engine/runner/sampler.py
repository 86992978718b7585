"""Choosing tokens from logits.

Randomness is a function of (seed, position) and nothing else, so a request draws the same numbers
whatever shares its batch, however its prompt was chunked, and after preemption.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gnomon.engine.errors import NumericsError
from gnomon.engine.scheduler.request import SamplingParams

_SMALLEST_TEMPERATURE = 1e-30  # smaller ones would round to 0 in fp32 and divide 0 by 0


@dataclass(frozen=True)
class Draw:
    """How to choose one token.

    Attributes:
        request_id: for messages.
        sampling: what the client asked for.
        seed: seed of the request, the client's or one derived from the engine's.
        position: absolute position the chosen token will have.
    """

    request_id: str
    sampling: SamplingParams
    seed: int
    position: int


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, fixed by its arguments."""
    digest = hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def derive_seed(engine_seed: int, arrival: int) -> int:
    """Seed of a request that brings none: by order of arrival, so a run can be repeated."""
    digest = hashlib.blake2b(f"{engine_seed}:{arrival}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """Choose one token a row.

    The path a row takes depends on its own parameters only, never on its neighbours'.

    Args:
        logits: fp32 [S, V].
        draws: S of them, in row order.

    Returns:
        S token ids. Greedy rows take the lowest id among equal logits.

    Raises:
        NumericsError: a row has a NaN, or nothing but -inf.
    """
    best, greedy = logits.max(dim=-1).values, logits.argmax(dim=-1)
    if not bool(torch.isfinite(best).all()):  # max propagates NaN
        _raise_not_finite(best, draws)
    chosen = greedy.tolist()
    random = [i for i, draw in enumerate(draws) if draw.sampling.temperature > 0.0]
    sorted_rows = [i for i in random if _needs_order(draws[i].sampling, logits.shape[1])]
    plain_rows = [i for i in random if i not in set(sorted_rows)]
    if plain_rows:
        picked = [draws[i] for i in plain_rows]
        probs = _probabilities(logits[plain_rows], picked)
        for i, token in zip(plain_rows, _invert(probs, picked).tolist(), strict=True):
            chosen[i] = token
    if sorted_rows:
        picked = [draws[i] for i in sorted_rows]
        ordered, ids = logits[sorted_rows].sort(dim=-1, descending=True, stable=True)
        ranks = _invert(_truncate(_probabilities(ordered, picked), picked), picked)
        tokens = ids.gather(1, ranks[:, None])[:, 0].tolist()
        for i, token in zip(sorted_rows, tokens, strict=True):
            chosen[i] = token
    return chosen


def _needs_order(sampling: SamplingParams, vocab_size: int) -> bool:
    return 0 < sampling.top_k < vocab_size or sampling.top_p < 1.0


def _probabilities(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Softmax at each row's temperature, with min_p applied: fp32 [S, V] -> fp64 [S, V].

    The maximum is subtracted before dividing, so no temperature overflows. ``min_p`` keeps tokens
    of at least that fraction of the best one's probability, which no later truncation changes.
    """
    temperature = _column(
        logits, [max(d.sampling.temperature, _SMALLEST_TEMPERATURE) for d in draws]
    )
    scaled = (logits - logits.max(dim=-1, keepdim=True).values) / temperature
    probs = scaled.double().softmax(dim=-1)
    floor = _column(probs, [d.sampling.min_p for d in draws]) * probs.max(-1, keepdim=True).values
    return torch.where(probs >= floor, probs, 0.0)


def _truncate(probs: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Apply top_k, then top_p of what top_k left, to probabilities in descending order [S, V].

    top_k keeps exactly k, the lowest ids among equal ones (the sort is stable); top_p keeps the
    smallest set that reaches the mass, and always the first token.
    """
    vocab_size = probs.shape[1]
    rank = torch.arange(vocab_size, device=probs.device)
    k = [d.sampling.top_k if d.sampling.top_k > 0 else vocab_size for d in draws]
    probs = torch.where(rank < _column(rank, k), probs, 0.0)
    mass = probs.cumsum(dim=-1)
    before = mass - probs
    limit = _column(probs, [d.sampling.top_p for d in draws]) * mass[:, -1:]
    return torch.where((before < limit) | (rank == 0), probs, 0.0)


def _invert(probs: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Invert the cumulative distribution at each row's uniform number: [S, V] -> int64 [S]."""
    mass = probs.cumsum(dim=-1)
    target = _column(probs, [uniform(d.seed, d.position) for d in draws]) * mass[:, -1:]
    index = torch.searchsorted(mass, target, right=True)[:, 0]
    # Rounding may put the target on the total: take the last token that has any probability.
    rank = torch.arange(probs.shape[1], device=probs.device)
    last = torch.where(probs > 0, rank, -1).max(dim=-1).values
    return torch.minimum(index, last)


def _column(like: torch.Tensor, values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _raise_not_finite(best: torch.Tensor, draws: Sequence[Draw]) -> None:
    bad = [draws[i] for i in (~torch.isfinite(best)).nonzero()[:, 0].tolist()]
    where = ", ".join(f"{d.request_id} at position {d.position}" for d in bad)
    raise NumericsError(f"the model produced logits that are not finite for {where}")
