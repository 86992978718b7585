"""Kimi K2 and K2.5 tool calls.

A section holds calls: an identifier such as ``functions.NAME:0``, then the arguments as JSON. The
identifier becomes the call's id, because the model's template wants it back in the history, unless
it has no number or another call of the reply has it. What is accepted besides: calls outside a
section, a section or a call without its end, no arguments.
"""

from __future__ import annotations

from enum import Enum

from gnomon.engine.serve.parsers.base import ToolSchemas
from gnomon.engine.serve.parsers.json_calls import Arguments, JsonCalls

_SECTIONS = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
_SECTION_ENDS = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
_CALL = "<|tool_call_begin|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_CALL_END = "<|tool_call_end|>"
_MARKERS = (*_SECTIONS, *_SECTION_ENDS, _CALL, _ARGUMENTS, _CALL_END)
_LONGEST_ID = 512

SECTION_MARKERS = _SECTIONS
"""Markers that end reasoning even if its closer is missing."""


class _State(Enum):
    TEXT = "outside sections"
    OPENED = "in a section that has no call yet"
    SECTION = "in a section, between calls"
    ID = "in a call's identifier"
    JSON = "in a call's arguments"


class KimiK2Tools(JsonCalls):
    """Incremental parser over the content part of a reply.

    Args:
        tools: the functions offered.
    """

    def __init__(self, tools: ToolSchemas) -> None:
        super().__init__(_MARKERS, _CALL)
        self._tools = tools
        self._state = _State.TEXT
        self._held = ""  # an opened section, or a call's beginning
        self._ids: set[str] = set()
        self._call: Arguments | None = None

    @property
    def _in_json(self) -> bool:
        return self._state is _State.JSON

    @property
    def _in_text(self) -> bool:
        return self._state is _State.TEXT

    def _text(self, text: str) -> None:
        if self._state is _State.ID:
            self._held += text
            if len(self._held) > _LONGEST_ID:
                self._give_up(_State.SECTION)
        elif self._state is _State.OPENED:
            self._held += text
            if text.strip():
                self._give_up(_State.TEXT)
        else:
            self._content(text)

    def _marker(self, marker: str) -> None:
        if self._state is _State.ID and marker == _ARGUMENTS and self._begin_arguments():
            return
        if self._state is _State.ID:
            self._give_up(_State.SECTION)
        if marker == _CALL:
            self._state, self._held = _State.ID, marker
        elif self._state is _State.OPENED:
            self._held += marker
            self._give_up(_State.TEXT)
        elif marker in _SECTIONS and self._state is _State.TEXT:
            self._state, self._held = _State.OPENED, marker
        elif self._state is _State.SECTION and marker != _ARGUMENTS:
            if marker in _SECTION_ENDS:
                self._state = _State.TEXT
                self._prose.interrupt(call=False)
        else:
            self._content(marker)

    def _begin_arguments(self) -> bool:
        """Start the call that the identifier names, if it names one."""
        call_id = self._held[len(_CALL) :].strip()
        name = self._name(call_id)
        if not name:
            return False
        numbered = call_id.rpartition(":")[2].isdigit() and call_id not in self._ids
        self._ids.add(call_id)
        self._call = self._start(name, call_id if numbered else None)
        self._state, self._held = _State.JSON, ""
        return True

    def _name(self, call_id: str) -> str:
        name, colon, index = call_id.rpartition(":")
        name = (name if colon and index.strip().isdigit() else call_id).strip()
        if name in self._tools:
            return name
        name = name.removeprefix("functions.")
        return name if name in self._tools else name.rpartition(".")[2]

    def _give_up(self, then: _State) -> None:
        """What is held is no call: show it as it was written."""
        held, self._held, self._state = self._held, "", then
        self._content(held)

    def _read_json(self, *, last: bool) -> bool:
        call = self._call
        assert call is not None
        events, used = call.feed(self._rest)
        self._events += events
        self._take(used)
        if call.json.done:
            self._end(complete=True)
        elif call.json.broken:
            return self._break(call, last=last)
        return True

    def _break(self, call: Arguments, *, last: bool) -> bool:
        """The JSON ends early: at a marker, or because it is none."""
        if not last and self._may_become_marker():
            return False
        json = call.json
        ended = any(map(self._rest.startswith, (_CALL_END, _CALL, *_SECTION_ENDS)))
        nothing = not json.begun and not json.lost.strip()
        self._end(complete=ended and (json.clean or nothing))
        swallowed = self._swallowed(json.latest)
        if swallowed is not None:
            self._rest = swallowed + self._rest
        elif json.lost.strip():
            self._content(json.lost)
        return True

    def _end(self, *, complete: bool) -> None:
        assert self._call is not None
        self._events += self._call.end(complete=complete)
        self._call, self._state = None, _State.SECTION
        self._prose.interrupt(call=True)

    def _finish(self, *, truncated: bool) -> None:
        if self._call is not None:
            json = self._call.json
            self._end(complete=not truncated and json.clean)
            swallowed = None if truncated else self._swallowed(json.latest)
            if swallowed is not None:
                self._rest = swallowed
                self._go_on(last=True)
                self._finish(truncated=truncated)
        elif self._state in (_State.OPENED, _State.ID) and not truncated:
            self._give_up(_State.TEXT)


class KimiK2ToolDialect:
    """How Kimi K2 and K2.5 write tool calls."""

    markers = _MARKERS

    def parser(self, tools: ToolSchemas) -> KimiK2Tools:
        """A parser whose arguments are the JSON the model wrote."""
        return KimiK2Tools(tools)
