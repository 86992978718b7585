"""Reasoning between two markers, then the answer.

The template may have opened the block already (M3's ``thinking_mode`` enabled), closed it
(disabled) or left the choice to the model (adaptive). The start state comes from the rendered
prompt's tail and from nothing else: the system part of the prompt mentions the markers too.
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


class _State(Enum):
    START = "no text yet"
    OPENED = "the prompt ends inside reasoning, no text yet"
    REASONING = "inside reasoning"
    CONTENT = "after reasoning"


class ThinkReasoning:
    """Incremental parser.

    A reply may start with the opener, with a stray closer (exactly one is dropped) or with its
    content. After the block has ended, markers are plain text.

    Args:
        opener: of the block.
        closer: of the block.
        opened: the prompt ends with the opener.
        ends: markers that end the block too, and are content themselves.
    """

    def __init__(
        self, opener: str, closer: str, *, opened: bool, ends: tuple[str, ...] = ()
    ) -> None:
        self._opener, self._closer, self._ends = opener, closer, ends
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
        if text.startswith(self._opener):
            self._state, self._held = _State.REASONING, text[len(self._opener) :]
        elif self._opener.startswith(text):
            return
        elif opened:
            self._state = _State.REASONING
        elif text.startswith(self._closer):
            self._state, self._held = _State.CONTENT, text[len(self._closer) :]
        elif not self._closer.startswith(text):
            self._state = _State.CONTENT

    def _reason(self) -> list[Event]:
        places = [(self._held.find(end), end) for end in (self._closer, *self._ends)]
        found = [place for place in places if place[0] >= 0]
        if found:
            at, end = min(found)
            reasoning = self._held[:at]
            self._held = self._held[at + (len(end) if end == self._closer else 0) :]
            self._state = _State.CONTENT
        else:
            keep = len(self._held) - held_suffix(self._held, (self._closer, *self._ends))
            reasoning, self._held = self._held[:keep], self._held[keep:]
        return [ReasoningDelta(reasoning)] if reasoning else []


class ThinkDialect:
    """Reasoning between an opener and a closer.

    Args:
        opener: of the block.
        closer: of the block.
        ends: markers that end the block too, and are content themselves.
    """

    def __init__(self, opener: str, closer: str, ends: tuple[str, ...] = ()) -> None:
        self.opener, self.closer, self.ends = opener, closer, ends
        self.markers: tuple[str, ...] = (opener, closer)

    def is_open(self, prompt: str) -> bool:
        """Whether the prompt ends inside reasoning."""
        return prompt.rstrip().endswith(self.opener)

    def parser(self, prompt: str) -> ThinkReasoning:
        """A parser whose start state follows from the tail of the rendered prompt."""
        opened = self.is_open(prompt)
        return ThinkReasoning(self.opener, self.closer, opened=opened, ends=self.ends)

    def split(self, content: str) -> tuple[str | None, str]:
        """Take a leading reasoning block out of an assistant message's content.

        Returns:
            The reasoning, None if the content does not start with a whole block; the rest.
        """
        start = content.lstrip()
        if not start.startswith(self.opener):
            return None, content
        reasoning, closer, rest = start[len(self.opener) :].partition(self.closer)
        return (reasoning, rest) if closer else (None, content)

    def wrap(self, reasoning: str) -> str:
        """The block as the model would write it."""
        return f"{self.opener}{reasoning}{self.closer}"
