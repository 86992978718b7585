"""Choosing tokens from logits.

Randomness is a function of (seed, position) and nothing else, so a request draws the same numbers
whatever shares its batch, however its prompt was chunked, and after preemption.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gnomon.engine.errors import NumericsError
from gnomon.engine.runner.rank import largest
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
    ordered = [i for i in random if _needs_order(draws[i].sampling, logits.shape[1])]
    plain = [i for i in random if i not in set(ordered)]
    if plain:
        picked = [draws[i] for i in plain]
        weights = _weights(logits[plain], best[plain], picked)
        for i, token in zip(plain, _invert(weights, picked).tolist(), strict=True):
            chosen[i] = token
    for i, token in _sample_ordered(logits, best, draws, ordered):
        chosen[i] = token
    return chosen


def _needs_order(sampling: SamplingParams, vocab_size: int) -> bool:
    return _keeps_few(sampling, vocab_size) or sampling.top_p < 1.0


def _keeps_few(sampling: SamplingParams, vocab_size: int) -> bool:
    return 0 < sampling.top_k < vocab_size


def _sample_ordered(
    logits: torch.Tensor, best: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Tokens of the rows that top_k or top_p cut, with as little of the vocabulary as decides.

    A row's tokens are ordered as far as it takes: to top_k, or until top_p's mass is reached, for
    which ever longer beginnings are tried. The sums run along that order, so that a longer
    beginning changes nothing in a shorter one.
    """
    vocab_size = logits.shape[1]
    few = [i for i in rows if _keeps_few(draws[i].sampling, vocab_size)]
    if few:
        picked = [draws[i] for i in few]
        count = max(draw.sampling.top_k for draw in picked)
        ranks, ids, _ = _cut(logits[few], best[few], picked, count, None)
        yield from zip(few, ids.gather(1, ranks[:, None])[:, 0].tolist(), strict=True)
    open_rows = [i for i in rows if i not in set(few)]
    total = torch.zeros(0)
    if open_rows:
        weights = _weights(logits[open_rows], best[open_rows], [draws[i] for i in open_rows])
        total = weights.sum(dim=-1, keepdim=True)
    for count in (*_BEGINNINGS, vocab_size):
        if not open_rows or (count > vocab_size):
            continue
        picked = [draws[i] for i in open_rows]
        ranks, ids, reached = _cut(logits[open_rows], best[open_rows], picked, count, total)
        tokens = ids.gather(1, ranks[:, None])[:, 0].tolist()
        left = []
        for at, (i, token) in enumerate(zip(open_rows, tokens, strict=True)):
            if reached[at] or count == vocab_size:
                yield i, token
            else:
                left.append(at)
        open_rows, total = [open_rows[at] for at in left], total[left]


_BEGINNINGS = (128,)
"""How many of the best tokens are looked at for top_p before the whole vocabulary is sorted."""


def _weights(logits: torch.Tensor, best: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Weights exp((logit - best) / temperature), with min_p applied: fp32 [S, N] -> fp64 [S, N].

    The maximum is subtracted before dividing, so no temperature overflows, and the best token's
    weight is 1. ``min_p`` keeps tokens of at least that fraction of it.
    """
    temperature = _column(
        logits, [max(d.sampling.temperature, _SMALLEST_TEMPERATURE) for d in draws]
    )
    weights = ((logits - best[:, None]) / temperature).double().exp_()
    if any(d.sampling.min_p > 0.0 for d in draws):
        floor = _column(weights, [d.sampling.min_p for d in draws])
        weights = torch.where(weights >= floor, weights, 0.0)
    return weights


def _cut(
    logits: torch.Tensor,
    best: torch.Tensor,
    draws: Sequence[Draw],
    count: int,
    total: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, list[bool]]:
    """Draw from the ``count`` best tokens of each row, after top_k and then top_p.

    top_k keeps exactly k, the lowest ids among equal ones; top_p keeps the smallest set that
    reaches its share of the mass, and always the first token.

    Args:
        logits: fp32 [S, V].
        best: fp32 [S], their maxima.
        draws: S of them.
        count: tokens of a row that are looked at.
        total: fp64 [S, 1], the mass of the whole vocabulary; None: that of the row's top_k.

    Returns:
        Ranks of the drawn tokens int64 [S], ids by rank int64 [S, count], and for each row whether
        top_p's set ends before the last of them.
    """
    values, ids = largest(logits, count)
    weights = _weights(values, best, draws)
    rank = torch.arange(count, device=logits.device)
    if total is None:
        weights = torch.where(rank < _column(rank, [d.sampling.top_k for d in draws]), weights, 0.0)
    mass = weights.cumsum(dim=-1)
    limit = _column(weights, [d.sampling.top_p for d in draws])
    limit = limit * (mass[:, -1:] if total is None else total)
    kept = (mass - weights < limit) | (rank == 0)
    ranks = _invert(torch.where(kept, weights, 0.0), draws)
    return ranks, ids, (~kept[:, -1]).tolist()


def _invert(weights: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Invert the cumulative distribution at each row's uniform number: [S, N] -> int64 [S]."""
    mass = weights.cumsum(dim=-1)
    target = _column(weights, [uniform(d.seed, d.position) for d in draws]) * mass[:, -1:]
    index = torch.searchsorted(mass, target, right=True)[:, 0]
    # Rounding may put the target on the total: take the last token that has any weight.
    rank = torch.arange(weights.shape[1], device=weights.device)
    last = torch.where(weights > 0, rank, -1).max(dim=-1).values
    return torch.minimum(index, last)


def _column(like: torch.Tensor, values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _raise_not_finite(best: torch.Tensor, draws: Sequence[Draw]) -> None:
    bad = [draws[i] for i in (~torch.isfinite(best)).nonzero()[:, 0].tolist()]
    where = ", ".join(f"{d.request_id} at position {d.position}" for d in bad)
    raise NumericsError(f"the model produced logits that are not finite for {where}")
