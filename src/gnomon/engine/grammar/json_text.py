"""Nodes as JSON text that holds no beginning of a marker."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gnomon.engine.grammar import numbers, regex
from gnomon.engine.grammar.automaton import Automaton
from gnomon.engine.grammar.dialects import Avoid
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
from gnomon.engine.grammar.ranges import SURROGATES, Ranges, complement, without
from gnomon.engine.grammar.states import written

_QUOTE, _BACKSLASH = (0x22, 0x22), (0x5C, 0x5C)
_CONTROLS = (0x00, 0x1F)
_ESCAPED = [_QUOTE, _BACKSLASH, _CONTROLS]
_AVOIDED = {Avoid.NOTHING: [], Avoid.BRACKETS: [(0x5D, 0x5D)], Avoid.ANGLE: [(0x3C, 0x3C)]}
_ESCAPE = r'"\\" (["\\/bfnrt] | "u" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))'
_SHORT_ESCAPES = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
_UNSPELLED = without([_CONTROLS], [(point, point) for point in _SHORT_ESCAPES])
_SPELLED = complement([*_UNSPELLED, SURROGATES])
MAX_LENGTH = 100_000
_MAX_CHAIN = 64  # characters with a rule each; of longer strings, none is escaped
_MAX_COUNTED = 64


class JsonText:
    """Writes nodes into a grammar; every method returns a body."""

    def __init__(
        self,
        grammar: Grammar,
        named: Mapping[str, Node],
        limits: Limits,
        avoid: Avoid = Avoid.NOTHING,
    ) -> None:
        self._avoid = avoid
        self._bare: Ranges = [*_ESCAPED, *_AVOIDED[avoid]]
        self._grammar = grammar
        self._named = named
        self._limits = limits
        self._references: dict[str, str] = {}
        self._shared: dict[str, str] = {}
        self._chain: dict[tuple[int, int | None], str] = {}
        self._patterns: dict[regex.Pattern, str] = {}

    def body(self, node: Node) -> str:
        """The JSON texts of a node's values."""
        match node:
            case Values(values):
                return either(self._constant(value) for value in values)
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

    def _constant(self, value: Any) -> str:
        return literal(constant(value, self._avoid))

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

    # Strings. Every text can be written in one way only, and whether a token fits depends on no
    # rule around the string: either makes masks a hundred times slower where it is missed.

    def _text(self, node: Text) -> str:
        if node.pattern is not None:
            return self._pattern(node.pattern)
        longest = node.longest
        if longest is None and self._limits.text is not None:
            longest = max(self._limits.text, node.shortest)
        if node.shortest > MAX_LENGTH:
            raise SchemaUnsupported("", "minLength", f"is more than {MAX_LENGTH}")
        most = None if longest is None else min(longest, MAX_LENGTH)
        if max(node.shortest, most or 0) <= _MAX_CHAIN:
            return f'"\\"" {self._counted(node.shortest, most)}'
        bare = char_class(self._bare, negated=True)
        if most is None:
            return f'"\\"" {bare}{{{node.shortest}}} {self._rest_of_string()}'
        return f'"\\"" {bare}{{{node.shortest},{most}}} "\\""'

    def _pattern(self, pattern: regex.Pattern) -> str:
        if pattern not in self._patterns:
            limit = self._limits.text
            form = pattern.form if limit is None else pattern.limited(limit)
            if isinstance(form, regex.Run):
                form = regex.restricted(form, complement([*self._bare, SURROGATES]))
                assert isinstance(form, regex.Run)
                body = f'{form.body()} "\\""'
            else:
                form = regex.restricted(form, _SPELLED)
                assert isinstance(form, Automaton)
                body = written(self._grammar, form, self._spell, '"\\""')
            self._patterns[pattern] = self._grammar.rule(f'"\\"" {body}')
        return self._patterns[pattern]

    def _spell(self, ranges: Ranges) -> list[str]:
        """A character of ranges as JSON spells it, by itself or escaped."""
        bare = regex.raw_char(ranges, self._bare)
        escaped = [literal("\\" + letter) for point, letter in _SHORT_ESCAPES.items()
                   if any(low <= point <= high for low, high in ranges)]  # fmt: skip
        for point, _ in _AVOIDED[self._avoid]:
            if any(low <= point <= high for low, high in ranges):
                escaped.append(literal(f"\\u{point:04x}"))
        found = [] if bare is None else [bare]
        return [*found, self._grammar.rule(either(escaped))] if escaped else found

    def _counted(self, need: int, room: int | None) -> str:
        """``need`` to ``room`` characters and the closing quote."""
        if room is None and need == 0:
            return self._rest_of_string()
        if (need, room) not in self._chain:
            name = self._chain[need, room] = self._grammar.declare()
            options = ['"\\""'] if need == 0 else []
            if room != 0:
                less = self._counted(max(need - 1, 0), None if room is None else room - 1)
                bare = char_class(self._bare, negated=True)
                options += [f"{bare} {less}", f"{self._escape()} {less}"]
            self._grammar.define(name, " | ".join(options))
        return self._chain[need, room]

    def _escape(self) -> str:
        return self._once("escape", lambda: _ESCAPE)

    def _rest_of_string(self) -> str:
        """Characters up to and with the closing quote: an automaton in rules."""
        if "rest" in self._shared:
            return self._shared["rest"]
        rest = self._shared["rest"] = self._grammar.declare()
        bare = char_class(self._bare, negated=True)
        end, escaped = '"\\""', f"{self._escape()} {rest}"
        if self._avoid is not Avoid.BRACKETS:
            self._grammar.define(rest, f"{end} | {bare} {rest} | {escaped}")
            return rest
        bracket, angle = self._grammar.declare(), self._grammar.declare()
        not_angle = char_class([*self._bare, (0x3C, 0x3C)], negated=True)
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
        bodies = [self._constant(value) for value in node.values]
        inner = chain(
            self._grammar, members, bodies, f'"," {self._space()} ', node.least, node.most
        )
        return self._grammar.rule(f'"[" {inner} "]"')

    def _object(self, node: Object) -> str:
        space = self._space()
        comma = f'"," {space} '
        if node.members or node.extra is None:
            bodies = [
                f'{self._constant(member.name)} ":" {space} '
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


def constant(value: Any, avoid: Avoid) -> str:
    """JSON text of a value as markers cannot hide in it."""
    text = json.dumps(value, ensure_ascii=False)
    match avoid:
        case Avoid.BRACKETS:
            return text.replace("]<]", "]\\u003c]")
        case Avoid.ANGLE:
            return text.replace("<", "\\u003c")
        case Avoid.NOTHING:
            return text
