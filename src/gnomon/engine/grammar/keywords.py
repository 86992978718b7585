"""Which JSON schema keywords can be enforced."""

from __future__ import annotations

from collections.abc import Mapping
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
