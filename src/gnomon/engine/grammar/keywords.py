"""Which JSON schema keywords can be enforced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class SchemaUnsupported(Exception):
    """A schema asks for something that cannot be enforced.

    Attributes:
        path: where, as ``properties.name``; empty for the schema itself.
        keyword: which keyword.
    """

    def __init__(self, path: str, keyword: str, why: str) -> None:
        self.path = path
        self.keyword = keyword
        where = f"{path}: " if path else ""
        super().__init__(f"{where}the keyword {keyword!r} {why}")


ANNOTATIONS = frozenset({
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly",
    "$comment", "$schema", "$id", "$anchor", "$defs", "definitions", "contentEncoding",
    "contentMediaType", "discriminator", "nullable", "externalDocs", "xml",
})  # fmt: skip
"""Keywords that restrict no value."""

COMBINING = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
GENERAL = frozenset({"type", "enum", "const"})
BY_TYPE: Mapping[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({
        "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    }),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems",
                        "additionalItems"}),
    "object": frozenset({
        "properties", "required", "additionalProperties", "minProperties", "maxProperties",
        "unevaluatedProperties",
    }),
}  # fmt: skip
KNOWN = ANNOTATIONS | COMBINING | GENERAL | frozenset().union(*BY_TYPE.values())


def first_unknown(schema: Mapping[str, Any]) -> str | None:
    """The first keyword that is neither enforced nor without effect."""
    return next((word for word in schema if word not in KNOWN and not word.startswith("x-")), None)


def inferred_type(schema: Mapping[str, Any]) -> str | None:
    """The type that a schema without ``type`` is about, by its first typed keyword."""
    for word in schema:
        for name, words in BY_TYPE.items():
            if word in words:
                return name
    return None


def first_malformed(schema: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first enforced keyword whose value is of the wrong kind, and what it must be."""
    for word, value in schema.items():
        for words, (holds, must) in _VALUES.items():
            if word in words and not holds(value):
                return word, must
    return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_schema(value: Any) -> bool:
    return isinstance(value, bool | Mapping)


def _are_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


_VALUES: Mapping[tuple[str, ...], tuple[Callable[[Any], bool], str]] = {
    ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"): (
        _is_count,
        "must be a whole number from 0",
    ),
    ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"): (
        _is_number,
        "must be a number",
    ),
    ("pattern", "format", "$ref"): (lambda v: isinstance(v, str), "must be a string"),
    ("uniqueItems",): (lambda v: isinstance(v, bool), "must be true or false"),
    ("enum",): (lambda v: isinstance(v, list), "must be a list"),
    ("required",): (
        lambda v: isinstance(v, list) and all(isinstance(name, str) for name in v),
        "must be a list of names",
    ),
    ("type",): (
        lambda v: isinstance(v, str) or (
            isinstance(v, list) and all(isinstance(name, str) for name in v)
        ),
        "must be a type or a list of types",
    ),
    ("properties",): (
        lambda v: isinstance(v, Mapping) and all(map(_is_schema, v.values())),
        "must be an object of schemas",
    ),
    ("anyOf", "oneOf", "allOf"): (_are_schemas, "must be a list of schemas"),
    ("prefixItems",): (lambda v: v == [] or _are_schemas(v), "must be a list of schemas"),
    ("items",): (
        lambda v: _is_schema(v) or v == [] or _are_schemas(v), "must be a schema or a list of them"
    ),
    ("additionalProperties", "additionalItems", "unevaluatedProperties"): (
        _is_schema,
        "must be a schema",
    ),
}  # fmt: skip
