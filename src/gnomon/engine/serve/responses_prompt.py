"""The prompt of a response; with ``truncation: auto``, of as much of the conversation as fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnomon.engine.serve.errors import ApiError
from gnomon.engine.serve.prompt import Prompt
from gnomon.engine.serve.responses_input import messages_of
from gnomon.engine.serve.served import Served
from gnomon.engine.serve.turns import droppable

_TOO_LONG = "context_length_exceeded"


@dataclass(frozen=True)
class Conversation:
    """What a response answers.

    Attributes:
        instructions: of the request.
        items: valid; all earlier ones and the request's own.
        tools: checked, in the chat shape.
        kwargs: extra template variables.
    """

    instructions: str | None
    items: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    kwargs: Mapping[str, Any]


async def fitting_prompt(
    served: Served, talk: Conversation, answer_tokens: int, *, drop: bool
) -> tuple[Prompt, int]:
    """The prompt, and how many items were left out of it.

    Args:
        served: the model.
        talk: the conversation.
        answer_tokens: room that must be left for the answer.
        drop: leave out the oldest turns, as few as are needed (see :func:`droppable`).

    Raises:
        ApiError: the conversation does not fit, whatever may be dropped, or cannot be rendered.
    """
    groups = droppable(talk.items) if drop else []
    limit = served.engine.facts.max_model_len

    async def attempt(number: int) -> tuple[Prompt, int]:
        gone = {at for group in groups[:number] for at in group}
        items = [item for at, item in enumerate(talk.items) if at not in gone]
        messages = messages_of(talk.instructions, items, (), served.seal.open)
        return await served.prompt(messages, talk.tools, talk.kwargs, "input"), len(gone)

    async def fits(number: int) -> tuple[Prompt, int] | None:
        try:
            found = await attempt(number)
        except ApiError as error:
            if error.code == _TOO_LONG:
                return None
            raise
        return found if len(found[0].ids) + answer_tokens <= limit else None

    if not groups:
        return await attempt(0)
    best = await fits(0)
    low, high = 1, len(groups)  # the fewest that must go are in between, if it can fit at all
    if best is None:
        best = await fits(high)
        if best is None:
            return await attempt(high)  # the caller tells that it does not fit
        while low < high:
            middle = (low + high) // 2
            found = await fits(middle)
            if found is None:
                low = middle + 1
            else:
                best, high = found, middle
    return best
