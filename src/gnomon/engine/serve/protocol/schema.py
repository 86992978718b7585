"""A light check that a tool's parameters are a JSON schema, so that errors name the place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "object", "array"})
_MAPS = ("properties", "$defs", "definitions", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
_MAX_DEPTH = 64


def schema_problem(schema: Any) -> str | None:
    """What is wrong with a schema of function parameters; None if nothing is."""
    if not isinstance(schema, Mapping):
        return "must be a JSON schema object"
    if schema.get("type", "object") != "object":
        return f"must have type 'object', not {schema['type']!r}"
    return next(_problems(schema, "", 0), None)


def _problems(schema: Any, path: str, depth: int) -> Iterator[str]:
    where = f"{path or 'the schema'} "
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        yield where + "must be a schema: an object or a boolean"
        return
    if depth > _MAX_DEPTH:
        yield f"is nested deeper than {_MAX_DEPTH} levels"
        return
    yield from (where + problem for problem in _own_problems(schema))
    for word, name, member in _members(schema):
        at = ".".join(part for part in (path, word, name) if part)
        yield from _problems(member, at, depth + 1)


def _own_problems(schema: Mapping[str, Any]) -> Iterator[str]:
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if not isinstance(kind, str) or kind not in _TYPES:
            yield f"has the unknown type {kind!r}; JSON schema knows {', '.join(sorted(_TYPES))}"
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        yield "has a 'required' that is not a list of names"
    if not isinstance(schema.get("enum", []), list):
        yield "has an 'enum' that is not a list"
    if not isinstance(schema.get("$ref", ""), str):
        yield "has a '$ref' that is not a string"
    for word in _MAPS:
        if not isinstance(schema.get(word, {}), Mapping):
            yield f"has {word!r} that are not an object of schemas"
    for word in _LISTS:
        if not isinstance(schema.get(word, []), list):
            yield f"has {word!r} that is not a list of schemas"


def _members(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for word in _MAPS:
        members = schema.get(word)
        if isinstance(members, Mapping):
            yield from ((word, name, member) for name, member in members.items())
    for word in _LISTS:
        options = schema.get(word)
        if isinstance(options, list):
            yield from ((word, str(at), member) for at, member in enumerate(options))
    for word in _SINGLES:
        if word in schema:
            single = schema[word]
            parts = single if isinstance(single, list) and word == "items" else [single]
            yield from ((word, "", part) for part in parts)
