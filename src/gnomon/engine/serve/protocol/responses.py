"""The body of ``POST /v1/responses``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from gnomon.engine.serve.protocol.common import (
    REFUSED_SAMPLING,
    Few,
    SamplingFields,
    Scores,
    StreamOptions,
    Strict,
    Tokens,
)


class FlatTool(Strict):
    """A function tool as the Responses API spells it, without a nested object."""

    model_config = ConfigDict(extra="forbid")

    type: str
    name: str
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None


class ReasoningOptions(Strict):
    """How much to think."""

    model_config = ConfigDict(extra="forbid")

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(SamplingFields):
    """A request for a model response. ``input`` items are checked where they are converted."""

    ACCEPTED: ClassVar[frozenset[str]] = SamplingFields.ACCEPTED - {"store", "metadata"}
    PROMPT: ClassVar[str] = "input"
    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **REFUSED_SAMPLING,
        "n": (1,),
        "best_of": (1,),
        "conversation": (),
        "prompt": (),
    }

    model: str
    input: str | Few[dict[str, Any]]
    previous_response_id: str | None = None
    instructions: str | None = None
    tools: Few[FlatTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    max_output_tokens: Tokens | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    reasoning: ReasoningOptions | None = None
    background: bool | None = None
    include: Few[str] | None = None
    top_logprobs: int | None = Field(default=None, ge=0)
    truncation: Literal["auto", "disabled"] | None = None
    max_tool_calls: int | None = Field(default=None, ge=1, le=2**31 - 1)
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def scores(self) -> Scores:
        """The log probabilities that are asked for, by ``include`` or by a number."""
        wanted = self.top_logprobs or LOGPROBS in (self.include or ())
        return Scores("top_logprobs", (self.top_logprobs or 0) if wanted else None)


LOGPROBS = "message.output_text.logprobs"
"""What ``include`` has for log probabilities."""
