"""What a generation tells besides text: its tokens one by one, and what they have cost so far."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon.engine.runner.scored import Logprobs


@dataclass(frozen=True, slots=True)
class Usage:
    """Exact token counts of one generation, so far or in the end."""

    prompt: int
    cached: int
    completion: int
    reasoning: int


@dataclass(frozen=True, slots=True)
class Token:
    """One token that was generated; told before the text that it completes.

    Attributes:
        offset: characters of text before it.
        scores: what the model thought of it; None if nobody asked.
        reasoning: it belongs to the model's reasoning, or to its markers.
    """

    id: int
    offset: int
    scores: Logprobs | None
    reasoning: bool


@dataclass(frozen=True, slots=True)
class PromptScores:
    """What the model thought of the prompt's tokens, from the second on; told before all else."""

    scores: tuple[Logprobs, ...]
