"""What a recipe says about the load: which sessions or prompts, and how long they may take.

How many at once is the point's, not the scenario's: `ReplaySpec` is a scenario with its
concurrency.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

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


class AgenticScenario(BaseModel):
    """A generated trace set, each of its sessions replayed once.

    Attributes:
        kind: tells this scenario from others.
        traces: where the sessions come from.
        request_timeout_s: after this long a request counts as an error.
        deadline_s: after this long the whole replay is stopped and reported as cancelled.
        slice_s: width of a point of the time series.
        scrape_interval_s: time between two readings of the server's metrics page.
        random_seed: given to the client for everything it draws.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Literal["agentic"] = "agentic"
    traces: GeneratedTraces = GeneratedTraces()
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


MAX_CONCURRENCY = 4096
"""Most sessions alive at once that a client may be asked to keep."""


class ReplaySpec(AgenticScenario):
    """One replay of a trace set at one concurrency.

    Attributes:
        concurrency: sessions alive at once; a session and its sub-agents count as one.
    """

    concurrency: int = Field(default=2, ge=1, le=MAX_CONCURRENCY)


class AgentxScenario(BaseModel):
    """The public AgentX replay: recorded sessions for a fixed time, the client's arguments locked.

    The defaults are the canonical values; a recipe that changes one may still run, but its numbers
    cannot be published beside others (see the policy ``uniform-client``).

    Attributes:
        kind: tells this scenario from others.
        dataset: hub id of the sessions, pinned by date: an alias without one rolls.
        dataset_revision: commit of the data set; ``unknown`` forbids publishing.
        entries: sessions of the data set.
        duration_s: of the measured phase; the client's scenario accepts no less than 900 s.
        warmup_requests: one-token requests of each lane before it.
        start_ratio: part of a session at which a lane begins, drawn between the two.
        idle_cap_s: longest pause of one session that is kept.
        system_idle_cap_s: longest pause of all sessions at once that is kept.
        grace_s: how long warm-up may drain.
        failed_request_share: share of failed requests at which the client gives up.
        random_seed: given to the client for everything it draws.
        chat_template: whether the client renders the chat template itself.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Literal["agentx"]
    dataset: str = Field(min_length=1)
    dataset_revision: Annotated[str, Field(pattern=r"^(unknown|[0-9a-f]{7,64})$")] = "unknown"
    entries: int = Field(default=393, ge=1)
    duration_s: int = Field(default=3600, ge=900)
    warmup_requests: int = Field(default=10, ge=0)
    start_ratio: tuple[float, float] = Field(default=(0.25, 0.75), strict=False)
    idle_cap_s: float = Field(default=300.0, gt=0)
    system_idle_cap_s: float = Field(default=10.0, gt=0)
    grace_s: float = Field(default=1800.0, gt=0)
    failed_request_share: float = Field(default=0.10, ge=0, le=1)
    random_seed: int = Field(default=42, ge=0)
    chat_template: bool = False

    @model_validator(mode="after")
    def _ratios_are_ordered(self) -> Self:
        low, high = self.start_ratio
        if not 0 <= low <= high <= 1:
            raise ValueError(f"start_ratio {low} to {high} is not a part of 0 to 1; correct it")
        return self

    @property
    def uncanonical(self) -> tuple[str, ...]:
        """Names of the locked arguments that differ from the canonical plan."""
        return tuple(
            name
            for name in _LOCKED_ARGUMENTS
            if getattr(self, name) != type(self).model_fields[name].default
        )


_LOCKED_ARGUMENTS = (
    *("entries", "duration_s", "warmup_requests", "start_ratio", "idle_cap_s"),
    *("system_idle_cap_s", "grace_s", "failed_request_share", "random_seed", "chat_template"),
)


class FixedLengthScenario(BaseModel):
    """Prompts and answers of one length, all at once as far as the concurrency allows.

    Attributes:
        kind: tells this scenario from others.
        input_tokens: of a prompt.
        output_tokens: of an answer.
        range_ratio: lengths are drawn between this part of the length and the whole.
        prompts_per_session: measured prompts for each unit of concurrency.
        warmups_per_session: prompts before them.
        request_timeout_s: after this long a request counts as an error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Literal["fixed_length"]
    input_tokens: int = Field(ge=1)
    output_tokens: int = Field(ge=1)
    range_ratio: float = Field(default=0.8, gt=0, le=1)
    prompts_per_session: int = Field(default=10, ge=1)
    warmups_per_session: int = Field(default=2, ge=0)
    request_timeout_s: float = Field(default=1800.0, gt=0)

    @property
    def longest_request_tokens(self) -> int:
        """Prompt plus answer."""
        return self.input_tokens + self.output_tokens


Scenario = Annotated[
    AgenticScenario | AgentxScenario | FixedLengthScenario, Field(discriminator="kind")
]

TEMPLATE_ALLOWANCE_TOKENS = 256
"""Tokens a chat template may add around a prompt; room to leave below ``max_model_len``."""
