"""The bodies of ``POST /tokenize`` and ``POST /detokenize``, in vLLM's shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from gnomon.engine.serve.errors import bad_request
from gnomon.engine.serve.protocol.chat import Message, Tool
from gnomon.engine.serve.protocol.common import Body, Few, TokenId


class TokenizeRequest(Body):
    """Text, or a conversation as chat would render it."""

    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "add_special_tokens": (False,),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "chat_template": (),
        "mm_processor_kwargs": (),
    }

    model: str | None = None
    prompt: str | None = None
    messages: Few[Message] | None = None
    tools: Few[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise bad_request("Send either 'prompt' or 'messages'.", "prompt")
        return self


class DetokenizeRequest(Body):
    """Token ids."""

    model: str | None = None
    tokens: Few[TokenId] = Field(max_length=2**24)
