"""The bodies of ``POST /v1/messages`` and ``/v1/messages/count_tokens``, Anthropic's shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ConfigDict, Field

from gnomon.engine.serve.protocol.common import Body, Few, StopString, Strict, Tokens


class Turn(Strict):
    """One message; its blocks are checked where they are converted."""

    model_config = ConfigDict(extra="forbid")

    role: str
    content: str | Few[dict[str, Any]]


class InputTool(Strict):
    """A tool the model may call."""

    model_config = ConfigDict(extra="forbid")

    type: str | None = None
    name: str
    description: str | None = None
    input_schema: Any = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class ToolChoice(Strict):
    """Which tools may or must be called."""

    model_config = ConfigDict(extra="forbid")

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict):
    """Whether to think; how long is the model's choice."""

    model_config = ConfigDict(extra="forbid")

    type: str
    budget_tokens: int | None = None
    display: str | None = None


class UserId(Strict):
    """Whom the vendor should take for the author."""

    model_config = ConfigDict(extra="forbid")

    user_id: str | None = None


class CountTokensRequest(Body):
    """A conversation whose prompt is to be counted."""

    ACCEPTED: ClassVar[frozenset[str]] = frozenset({"cache_control"})
    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "mcp_servers": ([],),
        "context_management": (),
    }

    model: str
    messages: Few[Turn]
    cache_control: dict[str, Any] | None = None
    system: str | Few[dict[str, Any]] | None = None
    tools: Few[InputTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None  # its older name
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest):
    """A request for a message."""

    ACCEPTED: ClassVar[frozenset[str]] = frozenset(
        {"cache_control", "metadata", "service_tier", "inference_geo"}
    )
    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **CountTokensRequest.NEUTRAL,
        "container": (),
    }

    max_tokens: Tokens
    metadata: UserId | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    stream: bool | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=2**31 - 1)
    stop_sequences: list[StopString] | None = Field(default=None, max_length=16)
