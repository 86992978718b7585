"""Limits the scheduler keeps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of one scheduler.

    Attributes:
        max_num_seqs: most requests that hold blocks at a time.
        max_num_batched_tokens: token budget of a step; at least ``max_num_seqs``, so that every
            running request advances in every step.
        max_model_len: most tokens of a request, prompt and output together.
        eos_token_ids: ids that end a request unless it ignores them.
        max_waiting: requests that may queue behind the running ones.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    eos_token_ids: frozenset[int] = frozenset()
    max_waiting: int = 4096

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"a budget of {self.max_num_batched_tokens} tokens a step cannot advance "
                f"{self.max_num_seqs} requests"
            )
