"""Schemas that hold together (``allOf``, siblings of ``anyOf``) as one schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gnomon.engine.grammar.keywords import ANNOTATIONS, SchemaUnsupported

Schema = Mapping[str, Any]
_LOWER = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}
_UPPER = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}


def merged(a: Schema, b: Schema, path: str) -> dict[str, Any]:
    """One schema that allows what both allow.

    Raises:
        SchemaUnsupported: two keywords cannot be combined.
    """
    found = dict(a)
    for word, value in b.items():
        if word not in found or found[word] == value or word in ANNOTATIONS:
            found[word] = found.get(word, value)
        elif word in _JOIN:
            found[word] = _JOIN[word](found[word], value)
        elif word in _LOWER:
            found[word] = max(found[word], value)
        elif word in _UPPER:
            found[word] = min(found[word], value)
        elif word in ("anyOf", "oneOf"):
            found.setdefault("allOf", [])
            found["allOf"] = [*found["allOf"], {word: value}]
        else:
            raise SchemaUnsupported(path, word, "has two values that cannot be combined")
    _close_each_other(found, a, b)
    return found


def _close_each_other(found: dict[str, Any], a: Schema, b: Schema) -> None:
    """A schema that forbids other members forbids those that only the other one declares."""
    for one, other in ((a, b), (b, a)):
        if one.get("additionalProperties") is False and "properties" in found:
            mine = one.get("properties", {})
            foreign = [name for name in other.get("properties", {}) if name not in mine]
            found["properties"] = {
                name: False if name in foreign else schema
                for name, schema in found["properties"].items()
            }
            found["additionalProperties"] = False


def _properties(a: Schema, b: Schema) -> dict[str, Any]:
    both = {
        name: {"allOf": [a[name], b[name]]} if name in a and name in b else schema
        for name, schema in {**a, **b}.items()
    }
    return {name: both[name] for name in [*a, *(n for n in b if n not in a)]}


def _types(a: Any, b: Any) -> list[str]:
    mine = [a] if isinstance(a, str) else list(a)
    theirs = [b] if isinstance(b, str) else list(b)
    both = [name for name in mine if name in theirs]
    if ({"integer"} & {*mine} and {"number"} & {*theirs}) or (
        {"number"} & {*mine} and {"integer"} & {*theirs}
    ):
        both.append("integer")
    return list(dict.fromkeys(both))


_JOIN: Mapping[str, Callable[[Any, Any], Any]] = {
    "properties": _properties,
    "required": lambda a, b: list(dict.fromkeys([*a, *b])),
    "enum": lambda a, b: [value for value in a if value in b],
    "type": _types,
    "allOf": lambda a, b: [*a, *b],
    "items": lambda a, b: {"allOf": [a, b]},
    "additionalProperties": lambda a, b: {"allOf": [a, b]},
    "uniqueItems": lambda a, b: a or b,
}
