"""From a conversation to prompt ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnomon.engine.serve.errors import bad_request, unsupported
from gnomon.engine.serve.sampling import no_room
from gnomon.engine.serve.shield import NoSpareCharacter, Shield
from gnomon.engine.serve.template import RESERVED, ChatTemplate, TemplateRefused
from gnomon.engine.serve.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt.

    Attributes:
        ids: its tokens.
        tail: its end as the template wrote it, which tells how the answer starts.
    """

    ids: list[int]
    tail: str


ONLY_COUNTED = 4
"""Contexts that a text may fill which is only counted."""


def require_short(
    tokenizer: Tokenizer, characters: int, limit: int, param: str, times: int = 1
) -> None:
    """Refuse a text that has too many tokens however it is cut into them.

    Raises:
        ApiError: it has ``times`` the ``limit`` of tokens at least.
    """
    least = tokenizer.least_tokens(characters)
    if least >= limit * times:
        raise no_room(limit, f"at least {least}", param)


def chat_prompt(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    kwargs: Mapping[str, Any],
    most: tuple[int, str, int] | None = None,
) -> Prompt:
    """Render and tokenise a conversation; marker text of users stays text.

    Args:
        template: of the checkpoint.
        tokenizer: of the checkpoint.
        messages: checked, in the template's shape.
        tools: the same.
        kwargs: extra template variables.
        most: the model's context, the field that holds the conversation, and how many contexts it
            may fill. A text that must be longer is refused without being tokenised, which takes
            seconds a megabyte.

    Raises:
        ApiError: a template variable is reserved or unknown, the template refuses, the values are
            nested too deeply, or the text is too long.
    """
    taken = sorted(RESERVED & kwargs.keys())
    if taken:
        where = f"chat_template_kwargs.{taken[0]}"
        raise bad_request(f"{where} is set by the server and cannot be given.", where)
    for name in sorted(kwargs.keys() - template.variables):
        where = f"chat_template_kwargs.{name}"
        raise unsupported(
            where, f"{where} would have no effect: the model's chat template has no such variable."
        )
    try:
        shield = Shield(tokenizer.markers, messages, tools, kwargs)
        rendered = template.render(
            shield.cover(messages), shield.cover(tools) or None, shield.cover(kwargs)
        )
        pieces = shield.pieces(rendered)
        if most is not None:
            require_short(tokenizer, sum(len(piece.text) for piece in pieces), *most)
        ids: list[int] = []
        for piece in pieces:
            ids += (
                tokenizer.encode_plain(piece.text) if piece.plain else tokenizer.encode(piece.text)
            )
    except TemplateRefused as error:
        raise bad_request(
            f"The chat template refused this conversation: {error}", None, "template_refused"
        ) from error
    except RecursionError:
        raise bad_request("The request is nested too deeply.", None, "invalid_json") from None
    except NoSpareCharacter as error:
        raise bad_request(f"The prompt cannot be encoded: {error}.", None) from error
    tail = pieces[-1].text if pieces and not pieces[-1].plain else ""
    return Prompt(ids, tail)
