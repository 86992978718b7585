"""From a conversation to prompt ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnomon.engine.serve.errors import bad_request
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


def chat_prompt(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    kwargs: Mapping[str, Any],
) -> Prompt:
    """Render and tokenise a conversation; marker text of users stays text.

    Raises:
        ApiError: a reserved template variable is set, the template refuses, or the values are
            nested too deeply.
    """
    taken = sorted(RESERVED & kwargs.keys())
    if taken:
        where = f"chat_template_kwargs.{taken[0]}"
        raise bad_request(f"{where} is set by the server and cannot be given.", where)
    try:
        shield = Shield(tokenizer.markers, messages, tools, kwargs)
        rendered = template.render(
            shield.cover(messages), shield.cover(tools) or None, shield.cover(kwargs)
        )
        pieces = shield.pieces(rendered)
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
        raise bad_request("The request is nested too deeply.", None) from None
    except NoSpareCharacter as error:
        raise bad_request(f"The prompt cannot be encoded: {error}.", None) from error
    tail = pieces[-1].text if pieces and not pieces[-1].plain else ""
    return Prompt(ids, tail)
