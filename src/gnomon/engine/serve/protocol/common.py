"""Request fields the endpoints share, and the rule for fields that are not served.

Every field of a request body is one of: supported (declared on the model), accepted (declared for
its type, known to be harmless to a text server, listed in ``ACCEPTED``), neutral (known, and
refused unless it has a value that asks for nothing, listed in ``NEUTRAL``) or unknown, which is
refused. Nothing is dropped in silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from gnomon.engine.serve.errors import bad_request, unsupported

_MAX_METADATA = 16


def _few(metadata: dict[str, str]) -> dict[str, str]:
    if len(metadata) > _MAX_METADATA:
        raise ValueError(f"has {len(metadata)} pairs; at most {_MAX_METADATA} are taken")
    return metadata


Metadata = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], Annotated[str, Field(max_length=512)]],
    AfterValidator(_few),
]
"""What a client notes about a request: up to 16 pairs."""

_Member = TypeVar("_Member")
Few = Annotated[list[_Member], Field(fail_fast=True)]
"""A list that clients may make long: its first fault is told, not millions of them."""

Tokens = Annotated[int, Field(ge=1, le=2**31 - 1)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
StopString = Annotated[str, Field(min_length=1, max_length=1024)]


class Strict(BaseModel):
    """A JSON object of a request: JSON types only, NaN and infinity refused."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class Body(Strict):
    """A request body, with the rule for fields that are not served."""

    model_config = ConfigDict(extra="forbid")

    ACCEPTED: ClassVar[frozenset[str]] = frozenset()
    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _vet(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        _require_json(data)
        kept = {}
        for name, value in data.items():
            if name in cls.model_fields:
                kept[name] = value
            elif name in cls.NEUTRAL:
                _require_neutral(name, value, cls.NEUTRAL[name])
            else:
                raise bad_request(
                    f"Unrecognized request argument supplied: {name}", name, "unknown_parameter"
                )
        return kept


def _require_json(body: Any) -> None:
    """Refuse what Python's JSON reader lets pass and JSON or UTF-8 cannot hold."""
    waiting = [body]
    while waiting:
        value = waiting.pop()
        match value:
            case str():
                if not value.isascii():
                    _require_text(value)
            case float():
                if not math.isfinite(value):
                    raise bad_request(
                        f"The body has the number {value}, which is not JSON.", None, "invalid_json"
                    )
            case Mapping():
                waiting += value.keys()
                waiting += value.values()
            case list():
                if set(map(type, value)) != {int}:  # the one list that may have millions
                    waiting += value


def _require_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise bad_request(
            f"The body has the unpaired surrogate {text[error.start]!a}, which is no character.",
            None,
            "invalid_json",
        ) from None


def _require_neutral(name: str, value: Any, neutral: tuple[Any, ...]) -> None:
    if value is None or any(value == n and isinstance(value, bool) is isinstance(n, bool)
                            for n in neutral):  # fmt: skip
        return
    allowed = " or ".join(["null", *map(repr, neutral)])
    raise unsupported(
        name, f"{name!r} is not supported by this server; leave it out (accepted: {allowed})."
    )


class AccountFields(Body):
    """Fields about the vendor's account and storage: accepted, and without effect here."""

    ACCEPTED: ClassVar[frozenset[str]] = frozenset({
        "store", "metadata", "user", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention",
    })  # fmt: skip

    store: bool | None = None
    metadata: Metadata | None = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class SamplingFields(AccountFields):
    """How tokens are chosen. OpenAI's and vLLM's fields, spelled as there.

    Attributes:
        PROMPT: the field that holds the prompt, for errors.
    """

    PROMPT: ClassVar[str] = "messages"

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    stop: StopString | list[StopString] | None = None
    stop_token_ids: Few[TokenId] | None = Field(default=None, max_length=64)
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(default=None, ge=0, le=2**31 - 1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None

    @model_validator(mode="after")
    def _check_stops(self) -> SamplingFields:
        if isinstance(self.stop, list) and len(self.stop) > _MAX_STOPS:
            raise bad_request(f"At most {_MAX_STOPS} stop strings are allowed.", "stop")
        for key in self.logit_bias or ():
            if not (key.isascii() and key.isdigit() and len(key) < _ID_DIGITS):
                raise bad_request(f"logit_bias has the key {key!r}, no token id.", "logit_bias")
        if len({int(key) for key in self.logit_bias or ()}) < len(self.logit_bias or ()):
            raise bad_request(
                "logit_bias names a token id twice, as in '5' and '05'.", "logit_bias"
            )
        if len(self.logit_bias or ()) > _MAX_BIASES:
            raise bad_request(f"At most {_MAX_BIASES} biases are allowed.", "logit_bias")
        return self

    @property
    def scores(self) -> Scores:
        """The log probabilities that are asked for."""
        return Scores()

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, none or more."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


_MAX_STOPS = 16
_MAX_BIASES = 1024
_ID_DIGITS = 10


@dataclass(frozen=True)
class Scores:
    """Log probabilities a request asks for.

    Attributes:
        param: the field that asks for most, for errors.
        output: of every token and of that many of the most probable ones; None for none.
        prompt: the same for the prompt.
    """

    param: str = "logprobs"
    output: int | None = None
    prompt: int | None = None

    @property
    def most(self) -> int:
        """The longest list of most probable tokens."""
        return max(self.output or 0, self.prompt or 0)


class Choices(SamplingFields):
    """Fields of the endpoints whose answers have choices."""

    n: int | None = Field(default=None, ge=1)
    best_of: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    @model_validator(mode="after")
    def _check_best_of(self) -> Choices:
        if self.best_of is not None and self.best_of != self.count:
            raise unsupported(
                "best_of",
                f"best_of is {self.best_of}; all choices are returned, so it must be n, here "
                f"{self.count}, or left out.",
            )
        return self

    @property
    def count(self) -> int:
        """Choices of one prompt."""
        return self.n or 1


class StreamOptions(Strict):
    """Options of a stream."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # padding against side channels: we add none


REFUSED_SAMPLING: Mapping[str, tuple[Any, ...]] = {
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "logits_processors": ([],),
    "priority": (0,),
    "cache_salt": (),
    "request_id": (),
    "vllm_xargs": (),
    "kv_transfer_params": (),
}
"""Sampling fields that are refused unless neutral, on every endpoint."""
