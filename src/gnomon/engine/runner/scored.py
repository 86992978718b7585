"""Log probabilities as they travel between the processes; the API process needs no torch."""

from __future__ import annotations

import msgspec


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """What the model thought of one position.

    Attributes:
        logprob: natural logarithm of the probability of the token that is there.
        rank: how many tokens are more probable, plus one.
        top_ids: the most probable tokens, best first; the lower id first among equal ones.
        top: their log probabilities.
    """

    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top: tuple[float, ...] = ()
