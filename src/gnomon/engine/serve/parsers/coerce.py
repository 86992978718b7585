"""Typing what a model wrote between tags by the tool's JSON schema.

Nothing here fails: what does not fit its schema stays text, so that the client sees what the
model said.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Schema = Mapping[str, Any]

_NO_SCHEMA: Schema = {}
_INTEGER = re.compile(r"-?\d{1,300}")
_NUMBER = re.compile(r"-?\d{1,300}(\.\d{1,300})?([eE][+-]?\d{1,3})?")
_MAX_HOPS = 32
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_ORDER = ("null", "boolean", "integer", "number", "object", "array")  # tried before string


@dataclass
class Element:
    """One tagged value as the model wrote it: text, child elements, or both."""

    key: str
    text: str = ""
    children: list[Element] = field(default_factory=list)


class ToolSchema:
    """The schema of one function's parameters, with references resolved inside it."""

    def __init__(self, root: Schema | None) -> None:
        self.root: Schema = root if isinstance(root, Mapping) else _NO_SCHEMA

    def resolve(self, schema: Any) -> Schema:
        """Follow local ``$ref``s; an unknown or endless one is no schema."""
        for _ in range(_MAX_HOPS):
            if not isinstance(schema, Mapping):
                return _NO_SCHEMA
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema
            schema = self._at(reference)
        return _NO_SCHEMA

    def _at(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return None
        here: Any = self.root
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(here, Mapping):
                here = here.get(name)
            elif isinstance(here, Sequence) and not isinstance(here, str) and name.isdigit():
                here = here[int(name)] if int(name) < len(here) else None
            else:
                return None
        return here

    def options(self, schema: Any, depth: int = 0) -> list[Schema]:
        """The schema and all its alternatives, references resolved."""
        resolved = self.resolve(schema)
        found = [resolved]
        if depth < _MAX_HOPS // 4:
            for word in _ALTERNATIVES:
                members = resolved.get(word)
                if isinstance(members, Sequence) and not isinstance(members, str):
                    for member in members[:_MAX_HOPS]:
                        found += self.options(member, depth + 1)
        return found

    def types(self, schema: Any) -> frozenset[str]:
        """JSON types the schema allows; empty if it says nothing."""
        found: set[str] = set()
        for option in self.options(schema):
            named = option.get("type")
            if isinstance(named, str):
                found.add(named)
            elif isinstance(named, Sequence):
                found.update(name for name in named if isinstance(name, str))
            elif isinstance(option.get("enum"), Sequence):
                found.update(map(_json_type, option["enum"]))
            elif "const" in option:
                found.add(_json_type(option["const"]))
            elif "properties" in option:
                found.add("object")
            elif "items" in option:
                found.add("array")
        return frozenset(found)

    def choices(self, schema: Any) -> list[Any]:
        """Values of ``enum`` and ``const``."""
        found: list[Any] = []
        for option in self.options(schema):
            values = option.get("enum")
            if isinstance(values, Sequence) and not isinstance(values, str):
                found += values
            if "const" in option:
                found.append(option["const"])
        return found

    def property(self, schema: Any, key: str) -> Schema:
        """Schema of an object's member; empty if nothing is known of it."""
        extra: Any = None
        for option in self.options(schema):
            members = option.get("properties")
            if isinstance(members, Mapping) and key in members:
                return self.resolve(members[key])
            extra = option.get("additionalProperties", extra)
        return self.resolve(extra)

    def declares(self, schema: Any, keys: Iterable[str]) -> bool:
        """Whether every key is a declared member of the object schema."""
        options = self.options(schema)
        return all(
            any(
                isinstance(o.get("properties"), Mapping) and key in o["properties"] for o in options
            )
            for key in keys
        )

    def items(self, schema: Any) -> Schema:
        """Schema of an array's members; empty if nothing is known of them."""
        for option in self.options(schema):
            if isinstance(option.get("items"), Mapping):
                return self.resolve(option["items"])
        return _NO_SCHEMA

    def value(self, element: Element, schema: Any) -> Any:
        """The JSON value of an element."""
        types = self.types(schema)
        if not element.children:
            return self._leaf(element.text, schema, types)
        names = {child.key for child in element.children}
        if "array" in types or (names == {"item"} and not self.declares(schema, names)):
            return self._array(element, schema, names)
        return self.members(element, schema)

    def members(self, element: Element, schema: Any) -> dict[str, Any]:
        """The children as an object; a repeated key is an array, loose text is ``$text``."""
        grouped: dict[str, list[Element]] = {}
        for child in element.children:
            grouped.setdefault(child.key, []).append(child)
        found = {
            key: self.repeated(same, self.property(schema, key)) for key, same in grouped.items()
        }
        if element.text.strip():
            found["$text"] = element.text
        return found

    def repeated(self, same: Sequence[Element], schema: Any) -> Any:
        """The value of a key that came once or several times."""
        if len(same) == 1:
            return self.value(same[0], schema)
        member = self.items(schema) if "array" in self.types(schema) else schema
        return [self.value(element, member) for element in same]

    def _array(self, element: Element, schema: Any, names: set[str]) -> list[Any]:
        member = self.items(schema)
        if "item" not in names and self.declares(member, names):
            return [self.members(element, member)]  # one object, without the item around it
        return [self.value(child, member) for child in element.children]

    def _leaf(self, text: str, schema: Any, types: frozenset[str]) -> Any:
        for choice in self.choices(schema):
            if isinstance(choice, str) and choice == text:
                return text
        for name in _ORDER:
            if name in types:
                fits, value = _parse(text.strip(), name)
                if fits:
                    return value
        if "array" in types and "string" not in types:
            return [self._leaf(text, self.items(schema), self.types(self.items(schema)))]
        return text


def _parse(text: str, name: str) -> tuple[bool, Any]:
    """Read ``text`` as one JSON type: whether it is one, and its value."""
    match name:
        case "null":
            return text.lower() == "null", None
        case "boolean":
            return text.lower() in ("true", "false"), text.lower() == "true"
        case "integer":
            return _integer(text)
        case "number":
            return _number(text)
        case "object":
            return (True, {}) if not text else _json(text, dict)
        case _:
            return (True, []) if not text else _json(text, list)


def _integer(text: str) -> tuple[bool, Any]:
    if _INTEGER.fullmatch(text):
        return True, int(text)
    fits, value = _number(text)
    return (True, int(value)) if fits and value == int(value) else (False, None)


def _number(text: str) -> tuple[bool, Any]:
    if _INTEGER.fullmatch(text):
        return True, int(text)
    if not _NUMBER.fullmatch(text):
        return False, None
    value = float(text)
    return math.isfinite(value), value


def _json(text: str, kind: type) -> tuple[bool, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False, None
    return isinstance(value, kind), value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"
