"""What a client asked for, and where the request stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from gnomon.engine.cache.manager import BlockTable


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen. ``temperature`` 0 is greedy; ``top_k`` -1 and ``top_p`` 1 are off.

    Penalties and ``logit_bias`` (pairs of token id and bias) change logits before that; until
    ``min_tokens`` tokens are out, no end-of-sequence or stop token is chosen.

    ``seed`` None draws from the engine's seed; with a seed, the same request draws the same
    numbers whatever else is in the batch.

    ``logprobs`` asks for the log probability of every output token and of that many of the most
    probable ones; ``prompt_logprobs`` for those of the prompt from its second token on. None asks
    for nothing. ``max_tokens`` 0 computes the prompt only.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 16
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the logits are used as the model gave them."""
        return (
            self.min_tokens == self.presence_penalty == self.frequency_penalty == 0
            and self.repetition_penalty == 1.0
            and not self.logit_bias
        )


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # an end-of-sequence or stop token
    LENGTH = "length"  # max_tokens or the model length
    ABORT = "abort"  # the client left or asked


class RequestState(StrEnum):
    """Where a request stands in the scheduler."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass
class Request:
    """One generation request; owned and mutated by the scheduler alone.

    Attributes:
        id: unique among live requests.
        prompt_ids: the prompt's token ids.
        sampling: how tokens are chosen and when to stop.
        arrival: order of arrival (a counter, not a clock), which is also the order of service.
        output_ids: tokens generated so far.
        table: blocks held, in logical order.
        num_computed: tokens whose K, V and index key are in the cache.
        num_cached: prompt tokens found in the prefix cache at first admission.
        preemptions: times the request was evicted and recomputed.
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival: int = 0
    state: RequestState = RequestState.WAITING
    output_ids: list[int] = field(default_factory=list)
    table: BlockTable = field(default_factory=BlockTable)
    num_computed: int = 0
    num_cached: int = 0
    preemptions: int = 0
    finish_reason: FinishReason | None = None

    @property
    def block_ids(self) -> list[int]:
        """Blocks held, in logical order."""
        return self.table.block_ids

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def scores_prompt(self) -> bool:
        """Whether the logits of prompt tokens are still to be told.

        They are with the first output token, so a prefix hit before that would leave gaps.
        """
        return self.sampling.prompt_logprobs is not None and not self.output_ids

    def tokens(self, start: int, stop: int) -> list[int]:
        """Token ids at positions ``start`` to ``stop`` (exclusive) of prompt plus output."""
        split = len(self.prompt_ids)
        head = list(self.prompt_ids[start : min(stop, split)])
        return head + self.output_ids[max(start - split, 0) : max(stop - split, 0)]
