"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gnomon.engine.serve.protocol.common import (
    REFUSED_SAMPLING,
    SamplingFields,
    StreamOptions,
    TokenId,
    Tokens,
)


class CompletionRequest(SamplingFields):
    """A completion of raw text or token ids, without a chat template.

    Markers in a text prompt count: who writes a raw prompt writes the template too.
    """

    PROMPT: ClassVar[str] = "prompt"
    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **REFUSED_SAMPLING,
        "logprobs": (),
        "prompt_logprobs": (),
        "echo": (False,),
        "suffix": ("",),
        "guided_json": (),
        "guided_regex": (),
        "guided_choice": (),
        "guided_grammar": (),
        "structured_outputs": (),
        "add_special_tokens": (False,),
    }

    model: str
    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    max_tokens: Tokens | None = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
