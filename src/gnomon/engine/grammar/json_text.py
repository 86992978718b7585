"""Nodes as JSON text. No text it allows contains the beginning ``]<]`` of an M3 marker."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gnomon.engine.grammar import numbers, regex
from gnomon.engine.grammar.ebnf import (
    EMPTY,
    Grammar,
    char_class,
    either,
    literal,
    optional,
    repeated,
)
from gnomon.engine.grammar.keywords import SchemaUnsupported
from gnomon.engine.grammar.limits import Limits
from gnomon.engine.grammar.nodes import (
    Anything,
    Array,
    Member,
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

_QUOTE, _BACKSLASH, _BRACKET = (0x22, 0x22), (0x5C, 0x5C), (0x5D, 0x5D)
_CONTROLS = (0x00, 0x1F)
_BARE = [_QUOTE, _BACKSLASH, _BRACKET, _CONTROLS]
_ESCAPE = r'"\\" (["\\/bfnrt] | "u" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))'
_SHORT_ESCAPES = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
MAX_LENGTH = 100_000
_GROUP = 16
_MAX_CHAIN = 256  # groups with a rule each; beyond, groups are repeated
_MAX_COUNTED = 64


class JsonText:
    """Writes nodes into a grammar; every method returns a body."""

    def __init__(self, grammar: Grammar, named: Mapping[str, Node], limits: Limits) -> None:
        self._grammar = grammar
        self._named = named
        self._limits = limits
        self._references: dict[str, str] = {}
        self._shared: dict[str, str] = {}
        self._exact: list[str] = []
        self._most: list[str] = []

    def body(self, node: Node) -> str:
        """The JSON texts of a node's values."""
        match node:
            case Values(values):
                return either(_constant(value) for value in values)
            case Text():
                return self._text(node)
            case Number():
                return self._grammar.rule(number_body(node))
            case Simple("null"):
                return '"null"'
            case Simple():
                return '("true" | "false")'
            case Array():
                return self._array(node)
            case Subset():
                return self._subset(node)
            case Object():
                return self._object(node)
            case OneOf(options):
                return either(self.body(option) for option in options)
            case Reference(name):
                return self._reference(name)
            case Anything():
                return self._anything()

    def _once(self, name: str, make: Callable[[], str]) -> str:
        """A rule needed in many places, made when it is first needed."""
        if name not in self._shared:
            self._shared[name] = self._grammar.declare()
            self._grammar.define(self._shared[name], make())
        return self._shared[name]

    def _reference(self, name: str) -> str:
        if name not in self._references:
            self._references[name] = self._grammar.declare()
            self._grammar.define(self._references[name], self.body(self._named[name]))
        return self._references[name]

    # Strings

    def _text(self, node: Text) -> str:
        if node.pattern is not None:
            inner = regex.body(node.pattern, _json_char, f"{self._char()}{{0,32}}")
            return self._grammar.rule(f'"\\"" ({inner}) "\\""')
        longest = node.longest
        if longest is None and self._limits.text is not None:
            longest = max(self._limits.text, node.shortest)
        if node.shortest > MAX_LENGTH:
            raise SchemaUnsupported("", "minLength", f"is more than {MAX_LENGTH}")
        start = f'"\\"" {self._exactly(node.shortest)}'
        if longest is None:
            return f"{start} {self._rest_of_string()}"
        return f"{start} {self._at_most(min(longest, MAX_LENGTH) - node.shortest)}"

    # Escapes make a character a rule of its own, and repeating such a rule makes masks a hundred
    # times slower. So characters are counted by chains of rules, in groups to keep those short.

    def _links(self) -> tuple[list[str], list[str]]:
        """Rules for exactly, and for at most, a number of characters up to a group."""
        if not self._exact:
            bare, escape = char_class(_BARE, negated=True), self._escape()
            self._exact, self._most = [EMPTY], [EMPTY]
            for _ in range(_GROUP):
                one, less = self._exact[-1], self._most[-1]
                self._exact.append(self._grammar.rule(f"{bare} {one} | {escape} {one}"))
                self._most.append(self._grammar.rule(f'"" | {bare} {less} | {escape} {less}'))
        return self._exact, self._most

    def _exactly(self, count: int) -> str:
        exact, _ = self._links()
        whole, rest = divmod(count, _GROUP)
        return f"{exact[_GROUP]}{{{whole}}} {exact[rest]}" if whole else exact[rest]

    def _at_most(self, count: int) -> str:
        """Up to ``count`` characters and the closing quote."""
        exact, most = self._links()
        whole, rest = divmod(count, _GROUP)
        groups = min(whole, _MAX_CHAIN)
        name = self._grammar.rule(f'{most[rest]} "\\""')
        for at in range(groups):
            more = f"{exact[_GROUP]} {name}"
            if at == groups - 1 and whole > groups:
                more = f"{exact[_GROUP]}{{1,{whole - groups + 1}}} {name}"
            name = self._grammar.rule(f'{most[_GROUP - 1]} "\\"" | {more}')
        return name

    def _char(self) -> str:
        """One character of a string whose length counts: any but a closing bracket."""
        bare = char_class(_BARE, negated=True)
        return self._once("char", lambda: f"{bare} | {self._escape()}")

    def _escape(self) -> str:
        return self._once("escape", lambda: _ESCAPE)

    def _rest_of_string(self) -> str:
        """Characters up to and with the closing quote, without ``]<]``: an automaton in rules."""
        if "rest" in self._shared:
            return self._shared["rest"]
        rest, bracket, angle = (self._grammar.declare() for _ in range(3))
        self._shared["rest"] = rest
        bare = char_class(_BARE, negated=True)
        not_angle = char_class([*_BARE, (0x3C, 0x3C)], negated=True)
        end, escaped = '"\\""', f"{self._escape()} {rest}"
        self._grammar.define(rest, f'{end} | {bare} {rest} | {escaped} | "]" {bracket}')
        self._grammar.define(
            bracket,
            f'{end} | {not_angle} {rest} | {escaped} | "]" {bracket} | "<" {angle}',
        )
        self._grammar.define(angle, f"{end} | {bare} {rest} | {escaped}")
        return rest

    # Containers

    def _space(self) -> str:
        """White space after a comma or colon and inside brackets."""
        if self._limits.any:
            return self._once("space", lambda: '" "?')
        return self._once("space", lambda: '(" " | "\\n" [ \\t]{0,40})?')

    def _array(self, node: Array) -> str:
        most = node.most
        if most is None and self._limits.items is not None and node.items is not None:
            most = max(self._limits.items, node.least, len(node.prefix))
        space = self._space()
        comma = f'"," {space} '
        prefix = [self._grammar.rule(self.body(one)) for one in node.prefix]
        if most is not None:
            prefix = prefix[:most]
        tail = EMPTY
        if node.items is not None and (most is None or most > len(prefix)):
            item = self._grammar.rule(self.body(node.items))
            least = max(node.least - len(prefix), 0)
            if not prefix:
                return f'"[" {space} {self._list(item, comma, node.least, most)} {space} "]"'
            rest = None if most is None else most - len(prefix)
            tail = repeated(comma + item, least, rest)
        for at in range(len(prefix) - 1, -1, -1):
            body = (comma if at else "") + f"{prefix[at]} {tail}"
            tail = body if at < node.least else optional(body)
        return self._grammar.rule(f'"[" {space} {tail} {space} "]"')

    def _list(self, item: str, comma: str, least: int, most: int | None) -> str:
        if most == 0:
            return EMPTY
        more = repeated(comma + item, max(least - 1, 0), None if most is None else most - 1)
        return f"{item} {more}" if least else optional(f"{item} {more}")

    def _subset(self, node: Subset) -> str:
        members = [Member(str(at), Values((v,)), False) for at, v in enumerate(node.values)]
        bodies = [_constant(value) for value in node.values]
        inner = chain(
            self._grammar, members, bodies, f'"," {self._space()} ', node.least, node.most
        )
        return self._grammar.rule(f'"[" {inner} "]"')

    def _object(self, node: Object) -> str:
        space = self._space()
        comma = f'"," {space} '
        if node.members or node.extra is None:
            bodies = [
                f'{_constant(member.name)} ":" {space} '
                + self._grammar.rule(self.body(member.node))
                for member in node.members
            ]
            inner = chain(self._grammar, node.members, bodies, comma, node.least, node.most)
        else:
            text = self.body(Text(longest=self._limits.text))
            key = self._grammar.rule(f'{text} ":" {space}')
            most = node.most if node.most is not None else self._limits.items
            pair = f"{key} " + self._grammar.rule(self.body(node.extra))
            inner = self._list(pair, comma, node.least, most)
        return self._grammar.rule(f'"{{" {space} {inner} {space} "}}"')

    def _anything(self) -> str:
        flat: list[Node] = [Text(), Number(whole=False), Simple("null"), Simple("boolean")]
        if self._limits.any:
            return self._once("anything", lambda: self.body(OneOf(tuple(flat))))
        both: tuple[Node, ...] = (Array((), Anything(), 0, None), Object((), Anything()))
        return self._once("anything", lambda: self.body(OneOf((*flat, *both))))


def chain(
    grammar: Grammar,
    members: Sequence[Member],
    bodies: Sequence[str],
    comma: str,
    least: int,
    most: int | None,
) -> str:
    """Members in their order, optional ones left out or not, ``least`` to ``most`` of them."""
    required = sum(member.required for member in members)
    counted = least > required or (most is not None and most < len(members))
    if counted and len(members) > _MAX_COUNTED:
        raise SchemaUnsupported("", "maxProperties", f"counts more than {_MAX_COUNTED} members")
    if most is not None and most < required:
        raise SchemaUnsupported("", "maxProperties", "is less than the required members")
    made: dict[tuple[int, int], str] = {}

    def from_(at: int, count: int) -> str | None:
        """Members from ``at`` on, ``count`` of them already written; None if that cannot end."""
        if most is not None and count > most:
            return None
        if at == len(members):
            return None if counted and count < least else EMPTY
        key = (at, count if counted else min(count, 1))
        if key not in made:
            options = []
            taken = from_(at + 1, count + 1)
            if taken is not None:
                options.append((comma if count else "") + f"{bodies[at]} {taken}")
            left = None if members[at].required else from_(at + 1, count)
            if left is not None:
                options.append(left)
            made[key] = grammar.rule(" | ".join(options)) if options else ""
        return made[key] or None

    for at in range(len(members) - 1, -1, -1):  # from the end, so that recursion stays flat
        for count in range(at + 1) if counted else (0, 1):
            from_(at, count)
    body = from_(0, 0)
    if body is None:
        raise SchemaUnsupported("", "minProperties", "asks for more members than there are")
    return body


def number_body(node: Number) -> str:
    """The decimal spellings of a number node."""
    try:
        return numbers.integers(node.bounds) if node.whole else numbers.numbers(node.bounds)
    except numbers.NoSuchNumber as error:
        raise SchemaUnsupported("", "minimum", f"cannot be met: {error}") from None


def constant(value: Any) -> str:
    """JSON text of a value as markers cannot hide in it."""
    return json.dumps(value, ensure_ascii=False).replace("]<]", "]\\u003c]")


def _constant(value: Any) -> str:
    return literal(constant(value))


def _json_char(ranges: regex.Ranges) -> str | None:
    """A character of ranges as JSON spells it, by itself or escaped."""
    options = []
    bare = regex.raw_char(ranges, _BARE)
    if bare is not None:
        options.append(bare)
    for point, letter in _SHORT_ESCAPES.items():
        if any(low <= point <= high for low, high in ranges):
            options.append(literal("\\" + letter))
    if any(low <= 0x5D <= high for low, high in ranges):
        options.append('"\\\\u005d"')
    return either(options) if options else None
