"""The body of ``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ConfigDict, Field, model_validator

from gnomon.engine.serve.errors import bad_request
from gnomon.engine.serve.protocol.common import (
    REFUSED_SAMPLING,
    Choices,
    Few,
    Scores,
    StreamOptions,
    Strict,
    Tokens,
)


class FunctionCall(Strict):
    """Name and arguments of a call in the history."""

    name: str = Field(min_length=1)
    arguments: str | dict[str, Any] | None = None  # JSON text; an object is taken as it is


class ToolCall(Strict):
    """A call the assistant made earlier."""

    id: str | None = None
    type: str = "function"
    function: FunctionCall


class Message(Strict):
    """One message. Members that other servers add to the messages they return are passed over.

    ``function_call`` and ``audio`` have to be null: what they say would be missing in the prompt.
    """

    model_config = ConfigDict(extra="ignore")

    role: str
    content: str | Few[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the other spelling of reasoning_content
    tool_calls: Few[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    function_call: None = None
    audio: None = None


class Function(Strict):
    """A function the model may call."""

    model_config = ConfigDict(extra="forbid")

    name: str
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None


class Tool(Strict):
    """A tool; only functions are served."""

    model_config = ConfigDict(extra="forbid")

    type: str
    function: Function


class ChatRequest(Choices):
    """A chat completion request."""

    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **REFUSED_SAMPLING,
        "prompt_logprobs": (),
        "functions": ([],),
        "function_call": (),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "verbosity": (),
        "web_search_options": (),
        "echo": (False,),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "add_special_tokens": (False,),
        "guided_json": (),
        "guided_regex": (),
        "guided_choice": (),
        "guided_grammar": (),
        "structured_outputs": (),
    }

    model: str
    messages: Few[Message]
    tools: Few[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0)
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None  # its newer name
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_logprobs(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise bad_request("top_logprobs needs 'logprobs' to be true.", "top_logprobs")
        return self

    @property
    def scores(self) -> Scores:
        """The log probabilities that are asked for."""
        return Scores("top_logprobs", (self.top_logprobs or 0) if self.logprobs else None)
