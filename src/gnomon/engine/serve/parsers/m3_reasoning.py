"""MiniMax-M3 reasoning: ``<mm:think>`` … ``</mm:think>``, then the answer.

The template may have opened the block already (``thinking_mode`` enabled), closed it (disabled)
or left the choice to the model (adaptive). The start state comes from the rendered prompt's tail
and from nothing else: the system part of the prompt mentions the markers too.
"""

from __future__ import annotations

from enum import Enum

from gnomon.engine.serve.parsers.base import (
    ContentDelta,
    Event,
    ReasoningDelta,
    held_suffix,
    loose_end,
)

OPEN = "<mm:think>"
CLOSE = "</mm:think>"


class _State(Enum):
    START = "no text yet"
    OPENED = "the prompt ends inside reasoning, no text yet"
    REASONING = "inside reasoning"
    CONTENT = "after reasoning"


class M3Reasoning:
    """Incremental parser.

    A reply may start with the opener, with a stray closer (exactly one is dropped) or with its
    content. After the block has ended, markers are plain text.

    Args:
        opened: the prompt ends with the opener.
    """

    def __init__(self, *, opened: bool) -> None:
        self._state = _State.OPENED if opened else _State.START
        self._held = ""

    @property
    def in_reasoning(self) -> bool:
        """Whether the text fed last ended inside reasoning."""
        return self._state in (_State.OPENED, _State.REASONING)

    def feed(self, text: str) -> list[Event]:
        """Take more text."""
        self._held += text
        if self._state in (_State.START, _State.OPENED):
            self._leave_start()
        events: list[Event] = []
        if self._state is _State.REASONING:
            events += self._reason()
        if self._state is _State.CONTENT and self._held:
            events.append(ContentDelta(self._held))
            self._held = ""
        return events

    def finish(self, *, truncated: bool) -> list[Event]:
        """Take the end; an unclosed block is all reasoning."""
        held, self._held = loose_end(self._held, truncated=truncated), ""
        if not held:
            return []
        return [ReasoningDelta(held) if self.in_reasoning else ContentDelta(held)]

    def _leave_start(self) -> None:
        """Decide how the reply starts, if enough of it is there."""
        opened = self._state is _State.OPENED
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self._state, self._held = _State.REASONING, text[len(OPEN) :]
        elif OPEN.startswith(text):
            return
        elif opened:
            self._state = _State.REASONING
        elif text.startswith(CLOSE):
            self._state, self._held = _State.CONTENT, text[len(CLOSE) :]
        elif not CLOSE.startswith(text):
            self._state = _State.CONTENT

    def _reason(self) -> list[Event]:
        reasoning, closer, rest = self._held.partition(CLOSE)
        if closer:
            self._state, self._held = _State.CONTENT, rest
        else:
            keep = len(self._held) - held_suffix(self._held, (CLOSE,))
            reasoning, self._held = self._held[:keep], self._held[keep:]
        return [ReasoningDelta(reasoning)] if reasoning else []


class M3ReasoningDialect:
    """How MiniMax-M3 writes reasoning."""

    markers = (OPEN, CLOSE)

    def parser(self, prompt: str) -> M3Reasoning:
        """A parser whose start state follows from the tail of the rendered prompt."""
        return M3Reasoning(opened=prompt.rstrip().endswith(OPEN))

    def split(self, content: str) -> tuple[str | None, str]:
        """Take a leading reasoning block out of an assistant message's content.

        Returns:
            The reasoning, None if the content does not start with a whole block; the rest.
        """
        start = content.lstrip()
        if not start.startswith(OPEN):
            return None, content
        reasoning, closer, rest = start[len(OPEN) :].partition(CLOSE)
        return (reasoning, rest) if closer else (None, content)
