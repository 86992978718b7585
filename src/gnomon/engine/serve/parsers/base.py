"""What a parser turns model text into, and the two protocols parsers implement.

A parser is an incremental state machine over text. However the text is cut into chunks, the
concatenated deltas are the same, and no part of a marker is ever shown as content.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gnomon.engine.serve.accounts import PromptScores, Token, Usage

DISTINCTIVE = 4
"""A cut-off marker at least this long, at the end of a truncated reply, is dropped, not shown."""


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A tool call begins; its name is known, its arguments follow.

    Attributes:
        id: the id that the model gave the call; None where dialects have none.
    """

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolArgumentsDelta:
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call's arguments are valid JSON now. ``complete`` is False if the reply was cut inside."""

    index: int
    complete: bool


Event = (
    ContentDelta
    | ReasoningDelta
    | ToolCallStart
    | ToolArgumentsDelta
    | ToolCallEnd
    | Token
    | PromptScores
    | Usage
)
"""What a generation tells. Parsers make the first five; the rest is told if somebody asked."""

ToolSchemas = Mapping[str, Mapping[str, Any]]
"""Name of each offered function to the JSON schema of its parameters, in request order."""


class ReasoningParser(Protocol):
    """Splits text into reasoning and content; emits only those two events."""

    @property
    def in_reasoning(self) -> bool:
        """Whether the text fed last ended inside reasoning."""
        ...

    def feed(self, text: str) -> list[Event]:
        """Take more text."""
        ...

    def finish(self, *, truncated: bool) -> list[Event]:
        """Take the end of the text; ``truncated`` if a token limit cut it."""
        ...


class ToolParser(Protocol):
    """Splits content into content and tool calls."""

    def feed(self, text: str) -> list[Event]:
        """Take more text."""
        ...

    def finish(self, *, truncated: bool) -> list[Event]:
        """Take the end of the text; ``truncated`` if a token limit cut it."""
        ...


class ReasoningDialect(Protocol):
    """One spelling of reasoning: its parser and what the server must know about its markers.

    Attributes:
        opener: begins reasoning.
        closer: ends it.
        ends: markers that end it too.
    """

    opener: str
    closer: str
    ends: tuple[str, ...]

    @property
    def markers(self) -> tuple[str, ...]:
        """Spellings that must reach the parser as text, even of special tokens."""
        ...

    def parser(self, prompt: str) -> ReasoningParser:
        """A parser whose start state follows from the tail of the rendered prompt."""
        ...

    def split(self, content: str) -> tuple[str | None, str]:
        """Take a leading reasoning block out of an assistant message's content."""
        ...

    def wrap(self, reasoning: str) -> str:
        """The block as the model would write it."""
        ...


class ToolDialect(Protocol):
    """One spelling of tool calls."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Spellings that must reach the parser as text, even of special tokens."""
        ...

    def parser(self, tools: ToolSchemas) -> ToolParser:
        """A parser that types arguments by the tools' schemas."""
        ...


class OutputParser:
    """Reasoning first, then tool calls in what is left. Either may be missing."""

    def __init__(self, reasoning: ReasoningParser | None, tools: ToolParser | None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def in_reasoning(self) -> bool:
        """Whether the text fed last ended inside reasoning."""
        return self._reasoning is not None and self._reasoning.in_reasoning

    def feed(self, text: str) -> list[Event]:
        """Take more text; returns the events it completes."""
        if self._reasoning is None:
            return merge(self._content(text))
        return merge(self._route(self._reasoning.feed(text)))

    def finish(self, *, truncated: bool) -> list[Event]:
        """Take the end of the text; ``truncated`` if a token limit cut it."""
        events: list[Event] = []
        if self._reasoning is not None:
            events += self._route(self._reasoning.finish(truncated=truncated))
        if self._tools is not None:
            events += self._tools.finish(truncated=truncated)
        return merge(events)

    def _route(self, events: Sequence[Event]) -> list[Event]:
        routed: list[Event] = []
        for event in events:
            routed += self._content(event.text) if isinstance(event, ContentDelta) else [event]
        return routed

    def _content(self, text: str) -> list[Event]:
        if self._tools is not None:
            return self._tools.feed(text)
        return [ContentDelta(text)]


def merge(events: Iterable[Event]) -> list[Event]:
    """Join neighbouring deltas of one kind and leave out empty ones."""
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        match last, event:
            case ContentDelta(a), ContentDelta(b):
                merged[-1] = ContentDelta(a + b)
            case ReasoningDelta(a), ReasoningDelta(b):
                merged[-1] = ReasoningDelta(a + b)
            case ToolArgumentsDelta(i, a), ToolArgumentsDelta(j, b) if i == j:
                merged[-1] = ToolArgumentsDelta(i, a + b)
            case _, (ContentDelta("") | ReasoningDelta("") | ToolArgumentsDelta(_, "")):
                pass
            case _:
                merged.append(event)
    return merged


def held_suffix(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of ``text`` that could be the start of a marker, 0 if none."""
    longest = max(map(len, markers), default=1) - 1
    for length in range(min(len(text), longest), 0, -1):
        tail = text[-length:]
        if any(len(marker) > length and marker.startswith(tail) for marker in markers):
            return length
    return 0


def loose_end(text: str, *, truncated: bool) -> str:
    """What to show of text held back as a possible marker when the reply ends there."""
    return "" if truncated and len(text) >= DISTINCTIVE else text
