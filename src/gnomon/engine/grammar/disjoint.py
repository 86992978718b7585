"""Whether two nodes can be satisfied by one value, as far as that is easy to see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnomon.engine.grammar.nodes import (
    Anything,
    Array,
    Node,
    Number,
    Object,
    OneOf,
    Reference,
    Simple,
    Subset,
    Text,
    Values,
)


def disjoint(a: Node, b: Node, named: Mapping[str, Node]) -> bool:
    """Whether no value written for one satisfies the other; False if that is not clear."""
    if isinstance(a, Reference):
        a = named.get(a.name, Anything())
    if isinstance(b, Reference):
        b = named.get(b.name, Anything())
    if isinstance(a, OneOf):
        return all(disjoint(option, b, named) for option in a.options)
    if isinstance(b, OneOf):
        return all(disjoint(a, option, named) for option in b.options)
    if isinstance(a, Reference | Anything) or isinstance(b, Reference | Anything):
        return False
    if not _kinds(a) & _kinds(b):
        return True
    if isinstance(a, Values) and isinstance(b, Values):
        return not any(value in b.values for value in a.values)
    if isinstance(a, Object) and isinstance(b, Object):
        theirs = {member.name: member for member in b.members}
        return any(
            mine.required
            and mine.name in theirs
            and theirs[mine.name].required
            and disjoint(mine.node, theirs[mine.name].node, named)
            for mine in a.members
        )
    return False


def _kinds(node: Node) -> set[str]:
    match node:
        case Text():
            return {"string"}
        case Number():
            return {"number"}
        case Simple(name):
            return {name}
        case Array() | Subset():
            return {"array"}
        case Object():
            return {"object"}
        case Values(values):
            return {kind(value) for value in values}
        case _:
            return {"null", "boolean", "number", "string", "array", "object"}


def kind(value: Any) -> str:
    """JSON type of a value, with integers among the numbers."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"
