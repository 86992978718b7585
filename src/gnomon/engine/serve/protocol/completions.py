"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from gnomon.engine.serve.protocol.common import (
    REFUSED_SAMPLING,
    Choices,
    Few,
    Scores,
    StreamOptions,
    TokenId,
)


class CompletionRequest(Choices):
    """A completion of raw text or token ids, without a chat template.

    Markers in a text prompt count: who writes a raw prompt writes the template too.
    """

    PROMPT: ClassVar[str] = "prompt"
    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **REFUSED_SAMPLING,
        "suffix": ("",),
        "guided_json": (),
        "guided_regex": (),
        "guided_choice": (),
        "guided_grammar": (),
        "structured_outputs": (),
        "add_special_tokens": (False,),
    }

    model: str
    prompt: str | Few[str] | Few[TokenId] | Few[Few[TokenId]]
    max_tokens: int | None = Field(default=None, ge=0, le=2**31 - 1)
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0)
    prompt_logprobs: int | None = Field(default=None, ge=0)
    response_format: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def scores(self) -> Scores:
        """The log probabilities that are asked for; an echo with any has the prompt's, too."""
        output, prompt = self.logprobs, self.prompt_logprobs
        param = "logprobs" if (output or 0) >= (prompt or 0) else "prompt_logprobs"
        if self.echo and output is not None:
            prompt = max(output, prompt or 0)
        return Scores(param, output, prompt)
