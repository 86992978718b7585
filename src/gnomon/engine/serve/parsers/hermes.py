"""Hermes tool calls: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``.

The members may come in any order and ``arguments`` may be called ``parameters``; arguments stream
if the name came before them. What is accepted besides: missing closers, no arguments, arguments
that are JSON inside a string. A block that names no function is content, as it was written.
"""

from __future__ import annotations

import json
from enum import Enum

from gnomon.engine.serve.parsers.base import ToolSchemas
from gnomon.engine.serve.parsers.json_calls import Arguments, JsonCalls
from gnomon.engine.serve.parsers.json_text import JsonText

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_ARGUMENTS = ("arguments", "parameters")
_SPACE = " \t\n\r"


class _State(Enum):
    TEXT = "outside blocks"
    ENVELOPE = "in the object that names function and arguments"
    BLOCK = "in a block, after its call"


class _Phase(Enum):
    START = "the envelope must begin"
    KEY = "a key or the envelope's end must come"
    COLON = "a colon must come"
    VALUE = "a value must come"
    AFTER = "a comma or the envelope's end must come"


class HermesTools(JsonCalls):
    """Incremental parser over the content part of a reply."""

    def __init__(self) -> None:
        super().__init__((_OPEN, _CLOSE), _OPEN)
        self._state = _State.TEXT
        self._reset()

    def _reset(self) -> None:
        self._phase = _Phase.START
        self._raw: list[str] = []  # what was read, until the call begins
        self._key: str | None = None  # None while a key is read
        self._scan: JsonText | None = None  # of a key, or of a value that does not stream
        self._latest: JsonText | None = None  # the scan before, if nothing has followed it yet
        self._broken = False  # the value read last cannot stand there
        self._value = ""
        self._early = ""  # arguments that came before the name
        self._call: Arguments | None = None
        self._streaming = False

    @property
    def _in_json(self) -> bool:
        return self._state is _State.ENVELOPE

    @property
    def _in_text(self) -> bool:
        return self._state is _State.TEXT

    def _text(self, text: str) -> None:
        self._content(text)

    def _marker(self, marker: str) -> None:
        if marker == _OPEN:
            self._reset()
            self._raw.append(marker)
            self._state = _State.ENVELOPE
        elif self._state is _State.BLOCK:
            self._state = _State.TEXT
            self._prose.interrupt(call=False)
        else:
            self._content(marker)

    def _consume(self, length: int) -> str:
        taken = self._take(length)
        if self._call is None:
            self._raw.append(taken)
        return taken

    def _read_json(self, *, last: bool) -> bool:
        good = not self._broken
        if self._broken:
            pass
        elif self._streaming:
            good = self._stream()
        elif self._scan is not None:
            good = self._collect(self._scan)
        elif self._rest[0] in _SPACE:
            self._consume(1)
        else:
            good = self._structure(self._rest[0])
        return True if good else self._break(last=last)

    def _structure(self, char: str) -> bool:
        """Take one character of the envelope itself; whether it belongs there."""
        match self._phase, char:
            case (_Phase.START, "{") | (_Phase.AFTER, ","):
                self._phase = _Phase.KEY
                self._latest = None
            case _Phase.KEY, '"':
                self._key, self._scan, self._value = None, JsonText(), ""
                return True
            case _Phase.COLON, ":":
                self._phase = _Phase.VALUE
                self._latest = None
            case _Phase.VALUE, _:
                self._streaming = (
                    char == "{" and self._key in _ARGUMENTS and self._call is not None
                    and not self._call.json.begun
                )  # fmt: skip
                self._scan, self._value = None if self._streaming else JsonText(), ""
                return True
            case ((_Phase.KEY | _Phase.AFTER), "}"):
                return self._end_envelope()
            case _:
                return False
        self._consume(1)
        return True

    def _stream(self) -> bool:
        assert self._call is not None
        events, used = self._call.feed(self._rest)
        self._events += events
        self._consume(used)
        if self._call.json.done:
            self._streaming, self._phase = False, _Phase.AFTER
        return not self._call.json.broken

    def _collect(self, scan: JsonText) -> bool:
        out, used = scan.feed(self._rest)
        self._consume(used)
        self._value += out
        if not scan.done:
            return not scan.broken
        self._scan, self._latest = None, scan
        if self._key is None:
            self._key, self._phase = str(json.loads(self._value)), _Phase.COLON
            return True
        self._phase = _Phase.AFTER
        if self._key == "name" and self._call is None:
            self._broken = not self._named(json.loads(self._value))
        elif self._key in _ARGUMENTS:
            self._broken = not self._arguments()
        return not self._broken

    def _named(self, name: object) -> bool:
        if not isinstance(name, str) or not name.strip():
            return False
        self._call = self._start(name.strip())
        self._raw.clear()
        early, self._early = self._early, ""
        self._events += self._call.feed(early)[0]
        return True

    def _arguments(self) -> bool:
        """Take whole arguments, which came before the name or are no plain object."""
        value, arguments = json.loads(self._value), self._value
        if isinstance(value, str):
            inner = JsonText(objects=True)
            arguments, _ = inner.feed(value.strip())
            if not inner.done:
                return False
        elif value is None:
            arguments = "{}"
        elif not isinstance(value, dict):
            return False
        if self._call is None:
            self._early = arguments
        elif not self._call.json.begun:
            self._events += self._call.feed(arguments)[0]
        return True

    def _end_envelope(self) -> bool:
        if self._call is None:
            return False
        self._consume(1)
        self._end(complete=True)
        return True

    def _end(self, *, complete: bool) -> None:
        assert self._call is not None
        self._events += self._call.end(complete=complete)
        self._call, self._state = None, _State.BLOCK
        self._prose.interrupt(call=True)

    @property
    def _is_whole(self) -> bool:
        """Whether only closers are missing."""
        assert self._call is not None
        if self._streaming:
            return self._call.json.clean
        return not self._broken and self._phase is _Phase.AFTER and self._scan is None

    @property
    def _swallowed_call(self) -> str | None:
        scan = self._scan or self._latest
        if self._streaming and self._call is not None:
            scan = self._call.json
        return self._swallowed(scan.latest) if scan is not None else None

    def _break(self, *, last: bool) -> bool:
        """The JSON ends early: at a marker, or because it is none."""
        if not last and self._may_become_marker():
            return False
        swallowed = self._swallowed_call
        if self._call is not None:
            ended = self._rest.startswith((_OPEN, _CLOSE))
            lost = self._lost
            self._end(complete=ended and self._is_whole)
            if swallowed is None and lost.strip():
                self._content(lost)
        else:
            self._state = _State.TEXT
            self._show_raw(swallowed)
        self._rest = (swallowed or "") + self._rest
        return True

    @property
    def _lost(self) -> str:
        if self._streaming and self._call is not None:
            return self._call.json.lost
        return self._value + (self._scan.lost if self._scan else "")

    def _show_raw(self, swallowed: str | None) -> None:
        raw = "".join(self._raw)
        self._raw.clear()
        if swallowed and raw.rstrip(_SPACE).endswith(swallowed):
            raw = raw[: raw.rindex(swallowed)]
        self._content(raw)

    def _finish(self, *, truncated: bool) -> None:
        if self._state is not _State.ENVELOPE:
            return
        swallowed = None if truncated else self._swallowed_call
        if self._call is not None:
            self._end(complete=not truncated and self._is_whole)
        else:
            self._state = _State.TEXT
            if not truncated:
                self._show_raw(swallowed)
        if swallowed is not None:
            self._rest = swallowed
            self._go_on(last=True)
            self._finish(truncated=truncated)


class HermesToolDialect:
    """How Hermes, and the many models after it, write tool calls."""

    markers = (_OPEN, _CLOSE)

    def parser(self, tools: ToolSchemas) -> HermesTools:
        """A parser whose arguments are the JSON the model wrote."""
        del tools
        return HermesTools()
