"""The body of ``POST /v1/responses``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from gnomon.engine.serve.protocol.common import (
    REFUSED_SAMPLING,
    SamplingFields,
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
        "top_logprobs": (0,),
        "conversation": (),
        "prompt": (),
    }

    model: str
    input: str | list[dict[str, Any]]
    previous_response_id: str | None = None
    instructions: str | None = None
    tools: list[FlatTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    max_output_tokens: Tokens | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    reasoning: ReasoningOptions | None = None
    background: bool | None = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_tool_calls: int | None = Field(default=None, ge=1, le=2**31 - 1)
    chat_template_kwargs: dict[str, Any] | None = None
