"""What the dialects share whose arguments are JSON: Kimi K2 and Hermes.

Markers are looked for outside of JSON only, so that an argument may quote them. If a string turns
out never to have ended, a call that begins inside it is read after all: nothing latches.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from gnomon.engine.serve.parsers.base import (
    Event,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
    held_suffix,
    loose_end,
    merge,
)
from gnomon.engine.serve.parsers.json_text import JsonText
from gnomon.engine.serve.parsers.prose import Prose


class Arguments:
    """The JSON arguments of one call, as events."""

    def __init__(self, index: int) -> None:
        self.json = JsonText(objects=True)
        self._index = index
        self._any = False

    def feed(self, text: str) -> tuple[list[Event], int]:
        """Take text; returns the events and how many characters were taken."""
        out, used = self.json.feed(text)
        return self._written(out), used

    def end(self, *, complete: bool) -> list[Event]:
        """Make what was written valid JSON, and end the call."""
        events = self._written(self.json.close())
        if not self._any:
            events += self._written("{}")
        return [*events, ToolCallEnd(self._index, complete)]

    def _written(self, text: str) -> list[Event]:
        self._any = self._any or bool(text)
        return [ToolArgumentsDelta(self._index, text)] if text else []


class JsonCalls(ABC):
    """A parser that alternates between text with markers and JSON.

    Args:
        markers: every marker of the dialect.
        begin: the marker at which a call begins.
    """

    def __init__(self, markers: tuple[str, ...], begin: str) -> None:
        self._markers = markers
        self._begin = begin
        self._find = re.compile("|".join(map(re.escape, markers)))
        self._rest = ""
        self._prose = Prose()
        self._calls = 0
        self._events: list[Event] = []

    def feed(self, text: str) -> list[Event]:
        """Take more text."""
        self._rest += text
        self._go_on(last=False)
        return self._emitted()

    def finish(self, *, truncated: bool) -> list[Event]:
        """Take the end of the text; ``truncated`` if a token limit cut it."""
        if truncated:
            self._cut_marker()
        self._go_on(last=True)
        self._finish(truncated=truncated)
        self._events += self._prose.finish()
        return self._emitted()

    @property
    @abstractmethod
    def _in_json(self) -> bool:
        """Whether JSON is read now."""

    @property
    @abstractmethod
    def _in_text(self) -> bool:
        """Whether ordinary text may stand here."""

    @abstractmethod
    def _read_json(self, *, last: bool) -> bool:
        """Read JSON from ``rest``; whether to go on."""

    @abstractmethod
    def _text(self, text: str) -> None:
        """Text outside JSON, before the next marker."""

    @abstractmethod
    def _marker(self, marker: str) -> None:
        """A marker outside JSON."""

    @abstractmethod
    def _finish(self, *, truncated: bool) -> None:
        """The reply is over; ``rest`` is empty."""

    def _go_on(self, *, last: bool) -> None:
        while self._rest:
            if self._in_json:
                if not self._read_json(last=last):
                    return
                continue
            match = self._find.search(self._rest)
            if match is None:
                held = 0 if last else held_suffix(self._rest, self._markers)
                text = self._take(len(self._rest) - held)
                if text:
                    self._text(text)
                return
            if match.start():
                self._text(self._take(match.start()))
            else:
                self._marker(self._take(len(match.group())))

    def _take(self, length: int) -> str:
        taken, self._rest = self._rest[:length], self._rest[length:]
        return taken

    def _may_become_marker(self) -> bool:
        """Whether ``rest`` is the beginning of a marker so far."""
        rest = self._rest
        return any(rest != marker and marker.startswith(rest) for marker in self._markers)

    def _cut_marker(self) -> None:
        """Drop a possible marker at the cut, unless it may be text."""
        if self._in_json:
            self._rest = ""  # it is held back only where no JSON can be
            return
        keep = len(self._rest) - held_suffix(self._rest, self._markers)
        may_be_text = self._in_text and not self._prose.between_calls
        cut = loose_end(self._rest[keep:], truncated=True) if may_be_text else ""
        self._rest = self._rest[:keep] + cut

    def _start(self, name: str, call_id: str | None = None) -> Arguments:
        self._events.append(ToolCallStart(self._calls, name, call_id))
        self._prose.interrupt(call=True)
        self._calls += 1
        return Arguments(self._calls - 1)

    def _content(self, text: str) -> None:
        self._events += self._prose.text(text)

    def _swallowed(self, read: str) -> str | None:
        """What follows a call's beginning inside broken JSON, with its marker; None without one."""
        at = read.find(self._begin)
        return read[at:] if at >= 0 else None

    def _emitted(self) -> list[Event]:
        events, self._events = merge(self._events), []
        return events
