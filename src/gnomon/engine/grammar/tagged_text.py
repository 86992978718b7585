"""Nodes as models write them between tags: raw text, elements, or JSON text.

What is written must come back as a value of the node once the parser has typed it by the tool's
schema: a string that looks like a number is a number where the schema allows both. Where that
could give a value of the wrong kind, the text is narrowed; where elements could be read in two
ways (unions, maps, references), containers are written as JSON text, which the parser takes as it
is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gnomon.engine.grammar import regex
from gnomon.engine.grammar.dialects import Avoid, Tags
from gnomon.engine.grammar.disjoint import kind
from gnomon.engine.grammar.ebnf import (
    Grammar,
    char_class,
    either,
    literal,
    repeated,
    without,
)
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
from gnomon.engine.grammar.ranges import SURROGATES, Ranges, complement, merged
from gnomon.engine.grammar.states import written

_MAX_ELEMENTS = 16  # nesting of elements; deeper values are JSON text
_AMBIGUOUS = (OneOf, Anything)  # between tags inside a container, these come back otherwise
# What a text may not start with if it could be taken for JSON: brackets, digits, signs, space.
_SPACES = [(0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680),
           (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F),
           (0x3000, 0x3000)]  # fmt: skip
_OPENERS = [*_SPACES, (0x5B, 0x5B), (0x7B, 0x7B), (0x5D, 0x5D)]
_NUMERIC = [*_OPENERS, (0x2B, 0x2B), (0x2D, 0x2D), (0x30, 0x39)]


class TaggedText:
    """Writes the parameters of calls into a grammar.

    Args:
        tags: of the dialect.
        avoid: what JSON text must not hold.
    """

    def __init__(
        self,
        grammar: Grammar,
        named: Mapping[str, Node],
        limits: Limits,
        tags: Tags,
        avoid: Avoid,
    ) -> None:
        self._grammar = grammar
        self._named = named
        self._limits = limits
        self._tags = tags
        self._avoid = avoid
        self._first = (ord(tags.first), ord(tags.first))
        self._json = JsonText(grammar, named, limits, avoid)

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
            if not self._tags.key.fullmatch(member.name):
                raise SchemaUnsupported(
                    "", "properties", f"has {member.name!r}, which no tag of a call can name"
                )
        if node.least > len(node.members):
            raise SchemaUnsupported("", "minProperties", "asks for undeclared parameters")
        return self._members(node, 0)

    def _members(self, node: Object, depth: int) -> str:
        bodies = [self._element(member.name, member.node, depth) for member in node.members]
        return chain(self._grammar, node.members, bodies, "", node.least, node.most)

    def _element(self, key: str, node: Node, depth: int) -> str:
        closer = literal(self._tags.closer(key))
        if self._tags.typed:
            return self._grammar.rule(
                either(
                    f"{literal(self._tags.opener(key, kind))} {value}"
                    for kind, value in self._by_kind(node, closer)
                )
            )
        opener = literal(self._tags.opener(key, ""))
        return self._grammar.rule(f"{opener} {self._value(node, depth, closer)}")

    def _by_kind(self, node: Node, end: str) -> Iterator[tuple[str, str]]:
        """JSON types a value may have, each with the body of the values of that type."""
        match node:
            case OneOf(options):
                for option in options:
                    yield from self._by_kind(option, end)
            case Reference(name):
                yield from self._by_kind(self._named[name], end)
            case Values(values, word):
                for name in dict.fromkeys(map(kind, values)):
                    same = tuple(value for value in values if kind(value) == name)
                    yield name, self._value(Values(same, word), 0, end)
            case Text() | Anything():
                yield "string", self._value(node, 0, end)
            case Number(whole):
                yield "integer" if whole else "number", self._value(node, 0, end)
            case Simple(name):
                yield name, self._value(node, 0, end)
            case Array() | Subset():
                yield "array", self._value(node, 0, end)
            case Object():
                yield "object", self._value(node, 0, end)

    # The closer belongs to the value's own rule: a token that runs into it is then known to fit
    # without looking at the rules around, and counted characters are counted in no time.

    def _value(self, node: Node, depth: int, end: str) -> str:
        match node:
            case Values(values, word):
                texts = [v if isinstance(v, str) else constant(v, self._avoid) for v in values]
                excluded = self._tags.excluded
                safe = [literal(t) for t in texts if not any(mark in t for mark in excluded)]
                if not safe:
                    raise SchemaUnsupported("", word, "has a value that spells a marker of calls")
                return f"{either(safe)} {end}"
            case Text():
                return self._text(node, [], end)
            case Number():
                return f"{self._grammar.rule(number_body(node))} {end}"
            case Anything():
                return self._text(Text(), [], end)
            case OneOf():
                return self._union(node, end)
            case Array() if self._by_elements(node, depth):
                assert node.items is not None
                item = self._element("item", node.items, depth + 1)
                most = node.most
                if most is None and self._limits.items is not None:
                    most = max(self._limits.items, node.least)
                return f"{repeated(item, node.least, most)} {end}"
            case Object() if self._by_elements(node, depth):
                return f"{self._members(node, depth + 1)} {end}"
            case _:
                return f"{self._json.body(node)} {end}"

    def _by_elements(self, node: Node, depth: int) -> bool:
        """Whether a container's elements can be typed in one way only."""
        if depth >= _MAX_ELEMENTS or not self._tags.nested:
            return False
        match node:
            case Array(prefix, items):
                return not prefix and items is not None and not isinstance(items, _AMBIGUOUS)
            case Object(members, plain=plain):
                return (
                    plain
                    and bool(members)
                    and all(
                        self._tags.key.fullmatch(m.name) is not None
                        and not isinstance(m.node, _AMBIGUOUS)
                        for m in members
                    )
                )
            case _:
                return False

    def _text(self, node: Text, banned_first: Ranges, end: str) -> str:
        """Raw text; ``banned_first`` keeps its first character from looking like other JSON."""
        if node.pattern is not None:
            return self._pattern(node.pattern, end)
        longest = node.longest
        if longest is None and self._limits.text is not None:
            longest = max(self._limits.text, node.shortest)
        if node.shortest > MAX_LENGTH:
            raise SchemaUnsupported("", "minLength", f"is more than {MAX_LENGTH}")
        char = char_class([self._first], negated=True)
        banned = merged([*banned_first, self._first])
        first = char_class(banned, negated=True) if banned_first else ""
        least = max(node.shortest - bool(first), 0)
        if longest is None:
            rest = (f"{char}{{{least}}} " if least else "") + without(*self._tags.excluded)
        else:
            most = min(longest, MAX_LENGTH) - bool(first)
            if most < 0:
                raise SchemaUnsupported("", "maxLength", "leaves no string that is told from JSON")
            rest = f"{char}{{{least},{most}}}"
        return self._grammar.rule(f"{first} {rest} {end}".strip())

    def _pattern(self, pattern: regex.Pattern, end: str) -> str:
        limit = self._limits.text
        form = pattern.form if limit is None else pattern.limited(limit)
        form = regex.restricted(form, complement([self._first, SURROGATES]))
        if isinstance(form, regex.Run):
            return self._grammar.rule(f"{form.body()} {end}")
        return written(self._grammar, form, lambda ranges: [char_class(ranges)], end)

    def _union(self, node: OneOf, end: str) -> str:
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
        return either(self._option(option, banned, end) for option in options)

    def _option(self, node: Node, banned: Ranges, end: str) -> str:
        match node:
            case Text() if banned:
                if node.pattern is not None and not (
                    node.is_format or not node.pattern.may_start_with(banned)
                ):
                    raise SchemaUnsupported(
                        "", "pattern", "is not supported beside alternatives that are no strings"
                    )
                return self._text(node, banned, end)
            case Anything() if banned:
                return self._text(Text(), banned, end)
            case Text() | Values() | Number() | Simple():
                return self._value(node, 0, end)
            case _:
                return f"{self._json.body(node)} {end}"


def _flat(node: OneOf) -> list[Node]:
    found: list[Node] = []
    for option in node.options:
        found += _flat(option) if isinstance(option, OneOf) else [option]
    return found
