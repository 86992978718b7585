"""The acceptance knob, which every engine counts differently.

A golden length counts the tokens a verification yields, the target's own included. vLLM, SGLang and
ATOM take that number; TensorRT-LLM takes the accepted drafts alone, one less; ATOM's other knob is
a rate of the drafts.
"""

from __future__ import annotations

_DIGITS = 4


def accepted_drafts(length: float) -> float:
    """Drafts that are accepted on average: one less than the length."""
    return round(length - 1, _DIGITS)


def acceptance_rate(length: float, tokens: int) -> float:
    """Share of the drafts that is accepted.

    Args:
        length: tokens a step yields.
        tokens: K, drafts of a step.
    """
    return round((length - 1) / tokens, _DIGITS)


def length_of_counts(accepted: int, steps: int) -> float:
    """Realised acceptance length from an engine's counters.

    Args:
        accepted: draft tokens that were accepted over the window.
        steps: verifications over the window.

    Raises:
        ValueError: there was no verification.
    """
    if steps < 1:
        raise ValueError("no verification happened, so no acceptance length was realised")
    return 1 + accepted / steps
