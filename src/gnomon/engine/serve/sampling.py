"""From request fields and the checkpoint's generation config to the engine's sampling."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gnomon.engine.errors import CheckpointError
from gnomon.engine.grammar.limits import Limits
from gnomon.engine.scheduler.request import SamplingParams
from gnomon.engine.serve.errors import ApiError, bad_request
from gnomon.engine.serve.protocol.common import SamplingFields


@dataclass(frozen=True)
class GenerationDefaults:
    """What applies when a request does not say; from generation_config.json.

    Attributes:
        max_tokens: cap on the output of a request that names none; None leaves the model's length.
        stop_token_ids: end-of-sequence ids.
        limits: ends for what a schema leaves open, which random weights need.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    max_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def load(cls, folder: Path) -> GenerationDefaults:
        """Read generation_config.json; a checkpoint without one gets neutral defaults.

        Raises:
            CheckpointError: the file is unusable.
        """
        path = folder / "generation_config.json"
        if not path.exists():
            return cls()
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            sampled = config.get("do_sample", True)
            eos = config.get("eos_token_id")
            return cls(
                temperature=float(_given(config, "temperature", 1.0)) if sampled else 0.0,
                top_p=float(_given(config, "top_p", 1.0)),
                top_k=int(_given(config, "top_k", 0)) or -1,
                min_p=float(_given(config, "min_p", 0.0)),
                max_tokens=config.get("max_new_tokens"),
                stop_token_ids=tuple(
                    eos if isinstance(eos, list) else [] if eos is None else [eos]
                ),
                limits=Limits(**config.get(_LIMITS, {})),
            )
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error

    def report(self) -> dict[str, Any]:
        """As JSON, for ``/server_info``."""
        return {**asdict(self), "stop_token_ids": list(self.stop_token_ids)}


_LIMITS = "structured_output_limits"


def _given(config: dict[str, Any], name: str, default: Any) -> Any:
    value = config.get(name)
    return default if value is None else value


def sampling_params(
    fields: SamplingFields, defaults: GenerationDefaults, max_tokens: int
) -> SamplingParams:
    """The engine's sampling for a request.

    Args:
        fields: what the request says.
        defaults: what applies otherwise.
        max_tokens: the output cap, from :func:`output_cap`.
    """
    own_stops = tuple(fields.stop_token_ids or ())
    stops = () if fields.ignore_eos else defaults.stop_token_ids
    return SamplingParams(
        temperature=_or(fields.temperature, defaults.temperature),
        top_p=_or(fields.top_p, defaults.top_p),
        top_k=_or(fields.top_k, defaults.top_k) or -1,
        min_p=_or(fields.min_p, defaults.min_p),
        seed=fields.seed,
        max_tokens=max_tokens,
        ignore_eos=bool(fields.ignore_eos),
        stop_token_ids=tuple(dict.fromkeys(own_stops + stops)),
        min_tokens=_least(fields, max_tokens),
        presence_penalty=_or(fields.presence_penalty, 0.0),
        frequency_penalty=_or(fields.frequency_penalty, 0.0),
        repetition_penalty=_or(fields.repetition_penalty, 1.0),
        logprobs=fields.scores.output,
        prompt_logprobs=fields.scores.prompt,
        logit_bias=tuple((int(key), bias) for key, bias in (fields.logit_bias or {}).items()),
    )


def _least(fields: SamplingFields, max_tokens: int) -> int:
    """The least number of tokens.

    Raises:
        ApiError: it is more than the most.
    """
    least = fields.min_tokens or 0
    if least > max_tokens:
        raise bad_request(
            f"min_tokens is {least}, more than the {max_tokens} the answer may have.", "min_tokens"
        )
    return least


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


@dataclass(frozen=True)
class Room:
    """What prompt and answer must fit into.

    Attributes:
        limit: the model's length in this engine, in tokens.
        default: cap on the answer when the request says nothing; None for the rest of the limit.
        param: the request's field that holds the prompt.
    """

    limit: int
    default: int | None
    param: str


def output_cap(cap: tuple[str, int | None], prompt_tokens: int, room_of: Room) -> int:
    """How many tokens a request may generate.

    Args:
        cap: name and value of the request's field that says it.
        prompt_tokens: length of its prompt.
        room_of: what it must fit into.

    Raises:
        ApiError: prompt, or prompt and output, do not fit; names the limit and the counts.
    """
    param, asked = cap
    limit = room_of.limit
    room = limit - prompt_tokens
    if room < (asked != 0):  # an answer of no tokens needs no room
        raise no_room(limit, str(prompt_tokens), room_of.param)
    if asked is None:
        return min(room, room_of.default or room)
    if asked > room:
        raise _overflow(
            f"This model's maximum context length is {limit} tokens, but {prompt_tokens + asked} "
            f"were requested ({prompt_tokens} in the prompt, {asked} for the answer). Shorten the "
            f"prompt or lower {param} to at most {room}.",
            param,
        )
    return asked


def no_room(limit: int, prompt_tokens: str, param: str) -> ApiError:
    """A 400: the prompt is too long, whatever the answer."""
    return _overflow(
        f"This model's maximum context length is {limit} tokens, but the prompt has "
        f"{prompt_tokens}, which leaves no room for an answer. Shorten the prompt.",
        param,
    )


def _overflow(message: str, param: str) -> ApiError:
    return bad_request(message, param, "context_length_exceeded")
