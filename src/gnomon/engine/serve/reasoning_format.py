"""Where chat answers carry the model's reasoning: in the content, in a field, or in both."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from enum import StrEnum

from gnomon.engine.serve.accounts import PromptScores, Token, Usage
from gnomon.engine.serve.generation import Finished
from gnomon.engine.serve.parsers.base import ContentDelta, Event, ReasoningDelta, ReasoningDialect


class ReasoningFormat(StrEnum):
    """Where reasoning goes."""

    CONTENT = "content"
    FIELD = "field"
    BOTH = "both"


class Blocks:
    """Writes reasoning into the content, in the dialect's own block, always closed.

    Args:
        dialect: of the model.
        keep: reasoning is told on its own as well.
    """

    def __init__(self, dialect: ReasoningDialect, *, keep: bool) -> None:
        self._opener, self._closer = dialect.wrap("\0").split("\0")
        self._keep = keep
        self._open = False

    def take(self, events: Sequence[Event]) -> list[Event]:
        """The events as they are to be told."""
        told: list[Event] = []
        for event in events:
            if isinstance(event, ReasoningDelta):
                text = ("" if self._open else self._opener) + event.text
                self._open = True
                told += [event, ContentDelta(text)] if self._keep else [ContentDelta(text)]
            elif isinstance(event, Token | PromptScores | Usage):
                told.append(event)  # says nothing that could end the block
            else:
                told += [*self.end(), event]
        return told

    def end(self) -> list[Event]:
        """Close the block if it is open."""
        if not self._open:
            return []
        self._open = False
        return [ContentDelta(self._closer)]


async def formatted(
    events: AsyncGenerator[list[Event] | Finished, None],
    form: ReasoningFormat,
    dialect: ReasoningDialect | None,
) -> AsyncGenerator[list[Event] | Finished, None]:
    """A generation with its reasoning where the server puts it."""
    blocks = None
    if form is not ReasoningFormat.FIELD and dialect is not None:
        blocks = Blocks(dialect, keep=form is ReasoningFormat.BOTH)
    async with contextlib.aclosing(events):
        async for item in events:
            if blocks is None:
                yield item
            elif isinstance(item, Finished):
                rest = blocks.end()
                if rest:
                    yield rest
                yield item
            else:
                yield blocks.take(item)
