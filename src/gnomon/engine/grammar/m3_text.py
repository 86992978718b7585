"""Nodes as MiniMax-M3 writes them between tags: raw text, elements, or JSON text.

What is written must come back as a value of the node once the parser has typed it by the tool's
schema: a string that looks like a number is a number where the schema allows both. Where that
could give a value of the wrong kind, the text is narrowed; where elements could be read in two
ways (unions, maps, references), containers are written as JSON text, which the parser takes as it
is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gnomon.engine.grammar import regex
from gnomon.engine.grammar.ebnf import Grammar, char_class, either, literal, repeated, without
from gnomon.engine.grammar.json_text import MAX_LENGTH, JsonText, chain, constant, number_body
from gnomon.engine.grammar.keywords import SchemaUnsupported
from gnomon.engine.grammar.limits import Limits
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

NAMESPACE = "]<]minimax[>["
_BRACKET = (0x5D, 0x5D)
_KEY = re.compile(r"(?!/|\s|invoke|tool_call)[^>\]\[]{1,200}(?<!\s)")
_MAX_ELEMENTS = 16  # nesting of elements; deeper values are JSON text
_AMBIGUOUS = (OneOf, Anything)  # between tags inside a container, these come back otherwise
# What a text may not start with if it could be taken for JSON: brackets, digits, signs, space.
_SPACES = [(0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680),
           (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F),
           (0x3000, 0x3000)]  # fmt: skip
_OPENERS = [*_SPACES, (0x5B, 0x5B), (0x7B, 0x7B), _BRACKET]
_NUMERIC = [*_OPENERS, (0x2B, 0x2B), (0x2D, 0x2D), (0x30, 0x39)]


class M3Text:
    """Writes the parameters of calls into a grammar."""

    def __init__(self, grammar: Grammar, named: Mapping[str, Node], limits: Limits) -> None:
        self._grammar = grammar
        self._limits = limits
        self._json = JsonText(grammar, named, limits)

    def parameters(self, node: Node) -> str:
        """Elements of a call's arguments.

        Raises:
            SchemaUnsupported: they cannot be written so that they come back valid.
        """
        if isinstance(node, Reference | Anything):
            raise SchemaUnsupported("", "$ref", "is not supported at the top of parameters")
        if not isinstance(node, Object):
            raise SchemaUnsupported("", "type", "must be 'object' at the top of parameters")
        for member in node.members:
            if not _KEY.fullmatch(member.name):
                raise SchemaUnsupported(
                    "", "properties", f"has {member.name!r}, which no M3 tag can name"
                )
        if node.least > len(node.members):
            raise SchemaUnsupported("", "minProperties", "asks for undeclared parameters")
        return self._members(node, 0)

    def _members(self, node: Object, depth: int) -> str:
        bodies = [
            self._element(member.name, self._value(member.node, depth)) for member in node.members
        ]
        return chain(self._grammar, node.members, bodies, "", node.least, node.most)

    def _element(self, key: str, value: str) -> str:
        opener, closer = literal(f"{NAMESPACE}<{key}>"), literal(f"{NAMESPACE}</{key}>")
        return self._grammar.rule(f"{opener} {value} {closer}")

    def _value(self, node: Node, depth: int) -> str:
        match node:
            case Values(values):
                texts = [v if isinstance(v, str) else constant(v) for v in values]
                safe = [literal(text) for text in texts if "]<]" not in text]
                if not safe:
                    raise SchemaUnsupported("", "enum", "has a value that spells an M3 marker")
                return either(safe)
            case Text():
                return self._text(node, [_BRACKET])
            case Number():
                return self._grammar.rule(number_body(node))
            case Simple():
                return self._json.body(node)
            case Anything():
                return self._text(Text(), [_BRACKET])
            case OneOf():
                return self._union(node)
            case Array() if self._by_elements(node, depth):
                assert node.items is not None
                item = self._element("item", self._value(node.items, depth + 1))
                most = node.most
                if most is None and self._limits.items is not None:
                    most = max(self._limits.items, node.least)
                return repeated(item, node.least, most)
            case Object() if self._by_elements(node, depth):
                return self._members(node, depth + 1)
            case _:
                return self._json.body(node)

    def _by_elements(self, node: Node, depth: int) -> bool:
        """Whether a container's elements can be typed in one way only."""
        if depth >= _MAX_ELEMENTS:
            return False
        match node:
            case Array(prefix, items):
                return not prefix and items is not None and not isinstance(items, _AMBIGUOUS)
            case Object(members, plain=plain):
                return (
                    plain
                    and bool(members)
                    and all(
                        _KEY.fullmatch(m.name) is not None and not isinstance(m.node, _AMBIGUOUS)
                        for m in members
                    )
                )
            case _:
                return False

    def _text(self, node: Text, banned_first: regex.Ranges) -> str:
        """Raw text; ``banned_first`` keeps its first character from looking like other JSON."""
        if node.pattern is not None:
            around = char_class([_BRACKET], negated=True) + "{0,32}"
            return self._grammar.rule(regex.body(node.pattern, _raw, around))
        longest = node.longest
        if longest is None and self._limits.text is not None:
            longest = max(self._limits.text, node.shortest)
        if node.shortest > MAX_LENGTH:
            raise SchemaUnsupported("", "minLength", f"is more than {MAX_LENGTH}")
        char = char_class([_BRACKET], negated=True)
        first = "" if banned_first == [_BRACKET] else char_class(banned_first, negated=True)
        least = max(node.shortest - bool(first), 0)
        if longest is None:
            start = f"{self._grammar.counted(char, least, least)} " if least else ""
            return self._grammar.rule(f"{first} {start}{without(']<]')}".strip())
        most = min(longest, MAX_LENGTH) - bool(first)
        if most < 0:
            raise SchemaUnsupported("", "maxLength", "leaves no string that is told from JSON")
        return self._grammar.rule(f"{first} {self._grammar.counted(char, least, most)}".strip())

    def _union(self, node: OneOf) -> str:
        options = list(_flat(node))
        containers = any(isinstance(o, Array | Object | Subset | Reference | Anything)
                         or (isinstance(o, Values) and any(isinstance(v, dict | list)
                                                           for v in o.values))
                         for o in options)  # fmt: skip
        ranged = any(isinstance(o, Number) and not o.bounds.free for o in options) or any(
            isinstance(o, Values) and any(isinstance(v, int | float) for v in o.values)
            for o in options
        )
        whole = any(isinstance(o, Number) for o in options)
        banned = _NUMERIC if ranged or (containers and whole) else _OPENERS if containers else []
        return either(self._option(option, banned) for option in options)

    def _option(self, node: Node, banned: regex.Ranges) -> str:
        match node:
            case Text() if banned:
                told_apart = node.is_format or (
                    node.pattern is not None and regex.never_starts_with(node.pattern, banned)
                )
                if node.pattern is not None and not told_apart:
                    raise SchemaUnsupported(
                        "", "pattern", "is not supported beside alternatives that are no strings"
                    )
                return self._text(node, banned)
            case Anything() if banned:
                return self._text(Text(), banned)
            case Text() | Values() | Number() | Simple():
                return self._value(node, 0)
            case _:
                return self._json.body(node)


def _flat(node: OneOf) -> list[Node]:
    found: list[Node] = []
    for option in node.options:
        found += _flat(option) if isinstance(option, OneOf) else [option]
    return found


def _raw(ranges: regex.Ranges) -> str | None:
    return regex.raw_char(ranges, [_BRACKET])
