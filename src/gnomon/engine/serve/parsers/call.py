"""One tagged call being read: its parameters, and the JSON written for them so far.

The JSON text grows only at its end, so it can be streamed: a parameter is written as soon as it
can no longer change. A key whose schema allows an array may be repeated, so it waits for the end
of the call, unless its value already is a whole array; for any other key the first value counts.
Plain strings are written while they arrive.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gnomon.engine.serve.parsers.base import (
    Event,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from gnomon.engine.serve.parsers.coerce import Element, ToolSchema

JSON_TYPES = ("null", "boolean", "integer", "number", "object", "array")
_SCALARS = frozenset({"null", "boolean", "integer", "number", "string"})
_MAX_DEPTH = 64


class Call:
    """The arguments of one invoke. ``events`` collects what to emit; the parser takes it."""

    def __init__(self, index: int, name: str, parameters: Mapping[str, Any] | None) -> None:
        self.index = index
        self.schema = ToolSchema(parameters)
        self.events: list[Event] = [ToolCallStart(index, name)]
        self.param: Raw | Tree | None = None
        self._empty = True
        self._written: set[str] = set()
        self._waiting: dict[str, list[Element]] = {}
        self._schemas: dict[str, Mapping[str, Any]] = {}  # of the waiting

    def open(self, key: str, *, nested: bool = True, hint: str | None = None) -> None:
        """A parameter's opening tag.

        Args:
            key: the parameter.
            nested: the dialect has elements inside values; else every value is text.
            hint: JSON type that the model names for the value; it wins over the schema.
        """
        schema = self.schema.property(self.schema.root, key) if hint is None else _hinted(hint)
        types = self.schema.types(schema)
        scalar = not nested or (bool(types) and types <= _SCALARS)
        self.param = Raw(self, key, schema) if scalar else Tree(self, key, schema)

    def whole(self, key: str, text: str) -> None:
        """A parameter whose opening tag is missing, known only at its closer."""
        self.open(key)
        assert self.param is not None
        self.param.text(text)
        self.close_param()

    def close_param(self) -> None:
        """The open parameter, if any, is finished."""
        if self.param is not None:
            self.param.close()
            self.param = None

    def end(self, *, complete: bool) -> None:
        """The call is over; an open parameter of an incomplete one keeps only streamed text."""
        if self.param is not None and not complete:
            self.param.cut()
            self.param = None
        self.close_param()
        for key, same in self._waiting.items():
            self.write(key, self.schema.repeated(same, self._schemas[key]))
        self.emit("{}" if self._empty else "}")
        self.events.append(ToolCallEnd(self.index, complete))

    def add(self, element: Element, schema: Mapping[str, Any]) -> None:
        """Write a finished parameter now, or keep it until the end of the call."""
        if self.is_written(element.key):
            return
        types = self.schema.types(schema)
        repeatable = not types or "array" in types
        whole = element.key not in self._waiting and _is_whole_array(element, types)
        if whole or not repeatable:
            self.write(element.key, self.schema.value(element, schema))
        else:
            self._waiting.setdefault(element.key, []).append(element)
            self._schemas.setdefault(element.key, schema)

    def is_written(self, key: str) -> bool:
        """Whether the key's value is final."""
        return key in self._written

    def write(self, key: str, value: Any) -> None:
        """Append one member to the JSON text."""
        self.begin(key)
        self.emit(json.dumps(value, ensure_ascii=False))

    def begin(self, key: str) -> None:
        """Append everything of a member but its value."""
        self.emit("{" if self._empty else ", ")
        self.emit(json.dumps(key, ensure_ascii=False) + ": ")
        self._empty = False
        self._written.add(key)

    def emit(self, text: str) -> None:
        """Append to the JSON text."""
        self.events.append(ToolArgumentsDelta(self.index, text))


def _hinted(hint: str) -> Mapping[str, Any]:
    """A schema for a value whose type the model names; what does not fit it stays a string."""
    if hint == "string":
        return {"type": "string"}
    scalars = [name for name in JSON_TYPES if name in _SCALARS]
    return {"type": [*(scalars if hint in _SCALARS else JSON_TYPES), "string"]}


def _is_whole_array(element: Element, types: frozenset[str]) -> bool:
    """Whether an element writes out an array by itself, so that no repetition is to come."""
    if element.children:
        return {child.key for child in element.children} == {"item"}
    return "array" in types and element.text.lstrip().startswith("[")


class Raw:
    """An open parameter of a scalar type: everything up to its closer is text."""

    def __init__(self, call: Call, key: str, schema: Mapping[str, Any]) -> None:
        self.key = key
        self.quoted: list[str] = []  # tags inside the text that look opened
        types = call.schema.types(schema)
        self._call = call
        self._schema = schema
        self._streams = types <= {"string", "null"} and "string" in types
        self._nullable = "null" in types
        self._ignored = call.is_written(key)
        self._held = ""
        self._streaming = False

    def text(self, text: str) -> None:
        """More of the value."""
        if self._ignored or not text:
            return
        if self._streaming:
            self._call.emit(_inside_quotes(text))
            return
        self._held += text
        if self._streams and not (self._nullable and "null".startswith(self._held.lower())):
            self._call.begin(self.key)
            self._call.emit('"' + _inside_quotes(self._held))
            self._streaming = True

    def close(self) -> None:
        """The value is complete."""
        if self._streaming:
            self._call.emit('"')
        elif not self._ignored:
            self._call.add(Element(self.key, self._held), self._schema)

    def cut(self) -> None:
        """The reply ended inside the value."""
        if self._streaming:
            self._call.emit('"')


class Tree:
    """An open parameter that may hold elements."""

    def __init__(self, call: Call, key: str, schema: Mapping[str, Any]) -> None:
        self.key = key
        self._call = call
        self._schema = schema
        self._stack = [Element(key)]

    def text(self, text: str) -> None:
        """More text of the innermost element."""
        self._stack[-1].text += text

    def push(self, key: str, raw: str) -> None:
        """An element's opening tag; too deep, it is text."""
        if len(self._stack) >= _MAX_DEPTH:
            self.text(raw)
            return
        child = Element(key)
        self._stack[-1].children.append(child)
        self._stack.append(child)

    def holds(self, key: str) -> bool:
        """Whether an element of that name is open."""
        return any(element.key == key for element in self._stack)

    def pop(self, key: str) -> bool:
        """A closer: ends the innermost element of that name, else the innermost of all.

        Returns:
            Whether the parameter itself ended.
        """
        while len(self._stack) > 1 and self.holds(key) and self._stack[-1].key != key:
            self._stack.pop()
        return len(self._stack) == 1 or self._stack.pop() is None

    def close(self) -> None:
        """The value is complete."""
        self._call.add(self._stack[0], self._schema)

    def cut(self) -> None:
        """The reply ended inside the value: it is left out."""


def _inside_quotes(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
