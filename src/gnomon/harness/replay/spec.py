"""What a recipe says about a replay: which traces, how many at once, how long it may take."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class GeneratedTraces(BaseModel):
    """A small agentic trace set made from a seed; the same values always give the same files.

    Each trace is one session: a root conversation whose turns end in tool use, sharing a growing
    prefix, with one sub-agent conversation spawned on the way when ``subagents`` is true.

    Attributes:
        kind: tells this source from others a recipe may name.
        seed: of the generator.
        sessions: number of traces, each a root conversation.
        turns: requests of each root conversation, sub-agents not counted.
        subagents: whether each session spawns a sub-agent of two requests.
        min_input_tokens: prompt length of a session's first request, at least.
        max_input_tokens: prompt length of any request, at most.
        min_output_tokens: answer length, at least.
        max_output_tokens: answer length, at most.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Literal["generated"] = "generated"
    seed: int = Field(default=7, ge=0)
    sessions: int = Field(default=3, ge=1, le=1000)
    turns: int = Field(default=4, ge=2, le=200)
    subagents: bool = True
    min_input_tokens: int = Field(default=600, ge=256)
    max_input_tokens: int = Field(default=2400, ge=512)
    min_output_tokens: int = Field(default=8, ge=2)
    max_output_tokens: int = Field(default=32, ge=2)

    @model_validator(mode="after")
    def _ranges_are_ordered(self) -> Self:
        if self.min_input_tokens > self.max_input_tokens:
            raise ValueError(
                f"min_input_tokens {self.min_input_tokens} is above max_input_tokens "
                f"{self.max_input_tokens}; lower the first or raise the second"
            )
        if self.min_output_tokens > self.max_output_tokens:
            raise ValueError(
                f"min_output_tokens {self.min_output_tokens} is above max_output_tokens "
                f"{self.max_output_tokens}; lower the first or raise the second"
            )
        return self

    @property
    def expected_requests(self) -> int:
        """Requests in the whole set, sub-agents included."""
        return self.sessions * (self.turns + (SUBAGENT_REQUESTS if self.subagents else 0))


SUBAGENT_REQUESTS = 2
"""Requests of each generated sub-agent conversation."""


class ReplaySpec(BaseModel):
    """One replay of a trace set at one concurrency.

    Attributes:
        traces: where the sessions come from.
        concurrency: sessions alive at once; a session and its sub-agents count as one.
        request_timeout_s: after this long a request counts as an error.
        deadline_s: after this long the whole replay is stopped and reported as cancelled.
        slice_s: width of a point of the time series.
        scrape_interval_s: time between two readings of the server's metrics page.
        random_seed: given to the client for everything it draws.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    traces: GeneratedTraces = GeneratedTraces()
    concurrency: int = Field(default=2, ge=1, le=4096)
    request_timeout_s: float = Field(default=60.0, gt=0)
    deadline_s: float = Field(default=300.0, gt=0)
    slice_s: float = Field(default=1.0, ge=0.1)
    scrape_interval_s: float = Field(default=0.5, ge=0.1)
    random_seed: int = Field(default=42, ge=0)

    @property
    def longest_request_tokens(self) -> int:
        """Prompt plus answer of the longest request the traces may contain.

        A server whose ``max_model_len`` is below this (plus the chat template's own tokens, see
        `TEMPLATE_ALLOWANCE_TOKENS`) cannot serve the replay.
        """
        return self.traces.max_input_tokens + self.traces.max_output_tokens


TEMPLATE_ALLOWANCE_TOKENS = 256
"""Tokens a chat template may add around a prompt; room to leave below ``max_model_len``."""
