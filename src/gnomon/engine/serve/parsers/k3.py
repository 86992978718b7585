"""Kimi K3: channels and calls as ``<|open|>NAME attributes<|sep|>`` … ``<|close|>NAME<|sep|>``.

Reasoning is the channel ``think``, the answer the channel ``response``, calls the channel
``tools``: ``call tool="f" index="1"``, ``argument key="k" type="string"``. A value of type string
is raw text, any other JSON. In attributes ``&`` and ``"`` are written as entities.
"""

from __future__ import annotations

import html
import re

from gnomon.engine.serve.parsers.base import (
    ContentDelta,
    Event,
    ToolSchemas,
    held_suffix,
    loose_end,
)
from gnomon.engine.serve.parsers.markup import Markup, MarkupLexer
from gnomon.engine.serve.parsers.tagged import TaggedTools
from gnomon.engine.serve.parsers.tags import BLOCK, INVOKE, Lexeme, Tag, Wrapper
from gnomon.engine.serve.parsers.think import ThinkDialect, ThinkReasoning

_OPEN, _CLOSE, _SEP = "<|open|>", "<|close|>", "<|sep|>"
_THINK = f"{_OPEN}think{_SEP}"
_THINK_END = f"{_CLOSE}think{_SEP}"
_TOOLS = f"{_OPEN}tools{_SEP}"
_TOOLS_END = f"{_CLOSE}tools{_SEP}"
_WRAPPERS = (f"{_OPEN}response{_SEP}", f"{_CLOSE}response{_SEP}", f"{_CLOSE}message{_SEP}")
_ATTRIBUTE = re.compile(r'\s*(\w+)\s*=\s*"([^"]*)"')


def _attributes(text: str) -> dict[str, str]:
    return {name: html.unescape(value) for name, value in _ATTRIBUTE.findall(text)}


def _call(raw: str, text: str) -> Lexeme | None:
    name = _attributes(text).get("tool", "").strip()
    return Tag(raw, INVOKE, function=name) if name else None


def _argument(raw: str, text: str) -> Lexeme | None:
    found = _attributes(text)
    key = found.get("key")
    return Tag(raw, key, hint=found.get("type")) if key is not None else None


_MARKUP = Markup(
    fixed={
        _TOOLS: Tag(_TOOLS, BLOCK, parameter=False),
        _TOOLS_END: Tag(_TOOLS_END, BLOCK, closing=True),
        f"{_CLOSE}call{_SEP}": Tag(f"{_CLOSE}call{_SEP}", INVOKE, closing=True),
        f"{_CLOSE}argument{_SEP}": Tag(f"{_CLOSE}argument{_SEP}", "", closing=True),
        **{wrapper: Wrapper(wrapper) for wrapper in _WRAPPERS},
    },
    open={f"{_OPEN}call ": _call, f"{_OPEN}argument ": _argument},
    end=_SEP,
)


class K3Tools(TaggedTools):
    """Incremental parser over the content part of a reply."""

    def __init__(self, tools: ToolSchemas) -> None:
        super().__init__(tools, MarkupLexer(_MARKUP), nested=False)


class K3ToolDialect:
    """How Kimi K3 writes tool calls."""

    markers = (_OPEN, _CLOSE, _SEP)

    def parser(self, tools: ToolSchemas) -> K3Tools:
        """A parser that types arguments as the model names them, else by the tools' schemas."""
        return K3Tools(tools)


class _Channels:
    """Content without the markers of its channel; from the tools channel on, text as it is."""

    def __init__(self) -> None:
        self._held = ""
        self._tools = False

    def feed(self, text: str) -> str:
        self._held += text
        shown = ""
        while not self._tools:
            places = [(self._held.find(marker), marker) for marker in (*_WRAPPERS, _TOOLS)]
            found = [place for place in places if place[0] >= 0]
            if not found:
                keep = len(self._held) - held_suffix(self._held, (*_WRAPPERS, _TOOLS))
                shown, self._held = shown + self._held[:keep], self._held[keep:]
                return shown
            at, marker = min(found)
            self._tools = marker == _TOOLS
            shown += self._held[:at]
            self._held = self._held[at if self._tools else at + len(marker) :]
        shown, self._held = shown + self._held, ""
        return shown

    def finish(self, *, truncated: bool) -> str:
        held, self._held = self._held, ""
        return loose_end(held, truncated=truncated)


class K3Reasoning(ThinkReasoning):
    """Incremental parser: the think channel, then content without its channel's markers."""

    def __init__(self, *, opened: bool) -> None:
        super().__init__(_THINK, _THINK_END, opened=opened, ends=(*_WRAPPERS[:1], _TOOLS))
        self._channels = _Channels()

    def feed(self, text: str) -> list[Event]:
        """Take more text."""
        return self._unwrapped(super().feed(text))

    def finish(self, *, truncated: bool) -> list[Event]:
        """Take the end; an unclosed channel is all reasoning."""
        events = self._unwrapped(super().finish(truncated=truncated))
        rest = self._channels.finish(truncated=truncated)
        return [*events, ContentDelta(rest)] if rest else events

    def _unwrapped(self, events: list[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            if isinstance(event, ContentDelta):
                text = self._channels.feed(event.text)
                found += [ContentDelta(text)] if text else []
            else:
                found.append(event)
        return found


class K3ReasoningDialect(ThinkDialect):
    """How Kimi K3 writes reasoning."""

    def __init__(self) -> None:
        super().__init__(_THINK, _THINK_END, ends=(_OPEN, _CLOSE))
        self.markers = (_OPEN, _CLOSE, _SEP)

    def parser(self, prompt: str) -> K3Reasoning:
        """A parser whose start state follows from the tail of the rendered prompt."""
        return K3Reasoning(opened=self.is_open(prompt))
