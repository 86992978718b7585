"""From the regular expressions of JSON schemas to grammar bodies.

JSON schema searches: a pattern without anchors may have anything around it. Look-around,
back-references and word boundaries cannot be written in a context-free grammar and are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gnomon.engine.grammar.ebnf import EMPTY, char_class, either, repeated
from gnomon.engine.grammar.keywords import SchemaUnsupported

# Python's own parser: public as sre_parse until 3.11, and without another door since.
_parser: Any = re._parser  # type: ignore[attr-defined]
_constants: Any = re._constants  # type: ignore[attr-defined]

Ranges = list[tuple[int, int]]

_CATEGORIES: dict[Any, tuple[Ranges, bool]] = {
    _constants.CATEGORY_DIGIT: ([(0x30, 0x39)], False),
    _constants.CATEGORY_NOT_DIGIT: ([(0x30, 0x39)], True),
    _constants.CATEGORY_WORD: ([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)], False),
    _constants.CATEGORY_NOT_WORD: (
        [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
        True,
    ),
    _constants.CATEGORY_SPACE: ([(0x09, 0x0D), (0x20, 0x20)], False),
    _constants.CATEGORY_NOT_SPACE: ([(0x09, 0x0D), (0x20, 0x20)], True),
}
_TOP = 0x10FFFF
_MAX_REPEAT = 4096
_NESTED = 16


class PatternUnsupported(SchemaUnsupported):
    """The expression cannot be enforced; the message says why."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__("", "pattern", why)


@dataclass(frozen=True)
class Pattern:
    """A parsed expression.

    Attributes:
        shortest: characters of the shortest text it matches as a whole.
        longest: of the longest; None if there is no end.
    """

    tree: Any
    starts: bool
    ends: bool
    shortest: int
    longest: int | None


def parse(source: str) -> Pattern:
    """Read an expression.

    Raises:
        PatternUnsupported: it is none, or uses what cannot be enforced.
    """
    try:
        tree = list(_parser.parse(source))
        low, high = _parser.parse(source).getwidth()
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternUnsupported(f"is no regular expression: {error}") from None
    starts = bool(tree) and _is_at(
        tree[0], (_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING)
    )
    tree = tree[1:] if starts else tree
    ends = bool(tree) and _is_at(tree[-1], (_constants.AT_END, _constants.AT_END_STRING))
    tree = tree[:-1] if ends else tree
    longest = high if starts and ends and high < _MAX_REPEAT * 16 else None
    return Pattern(tree, starts, ends, low, longest)


def _is_at(node: Any, where: tuple[Any, ...]) -> bool:
    return bool(node[0] is _constants.AT and node[1] in where)


def body(pattern: Pattern, char: Callable[[Ranges], str | None], anything: str) -> str:
    """The grammar of a pattern.

    Args:
        pattern: parsed.
        char: the body for one character out of ranges, as the surrounding format spells it; None
            if it can spell none of them.
        anything: the body of free text, around an expression that is not anchored.

    Raises:
        PatternUnsupported: it uses what cannot be enforced.
    """
    inner = _Writer(char).sequence(pattern.tree)
    before = "" if pattern.starts else anything + " "
    after = "" if pattern.ends else " " + anything
    return before + inner + after


def never_starts_with(pattern: Pattern, banned: Ranges) -> bool:
    """Whether it is plain that no match is empty or starts with one of these characters."""
    if not pattern.starts:
        return False
    tree = pattern.tree
    while tree:
        kind, value = tree[0]
        match kind:
            case _constants.LITERAL:
                first = [(value, value)]
            case _constants.IN:
                first = _members(value)
            case _constants.SUBPATTERN:
                tree = value[3]
                continue
            case _constants.MAX_REPEAT | _constants.MIN_REPEAT if value[0] > 0:
                tree = value[2]
                continue
            case _:
                return False
        return remove(first, banned) == first
    return False


class _Writer:
    def __init__(self, char: Callable[[Ranges], str | None]) -> None:
        self._char = char
        self._inside_wide = False

    def sequence(self, tree: Any) -> str:
        return " ".join(self._node(kind, value) for kind, value in tree) or EMPTY

    def _node(self, kind: Any, value: Any) -> str:
        match kind:
            case _constants.LITERAL:
                return self._one([(value, value)])
            case _constants.NOT_LITERAL:
                return self._one(_complement([(value, value)]))
            case _constants.ANY:
                return self._one(_complement([(0x0A, 0x0A)]))
            case _constants.IN:
                return self._one(_members(value))
            case _constants.BRANCH:
                return either([self.sequence(option) for option in value[1]])
            case _constants.SUBPATTERN:
                if value[1] or value[2]:
                    raise PatternUnsupported("has inline flags, which cannot be enforced")
                return f"({self.sequence(value[3])})"
            case _constants.MAX_REPEAT | _constants.MIN_REPEAT:
                return self._repeat(*value)
            case _:
                raise PatternUnsupported(
                    f"uses {str(kind).lower().replace('_', ' ')}, which cannot be enforced"
                )

    def _repeat(self, least: int, most: Any, tree: Any) -> str:
        endless = most is _constants.MAXREPEAT
        if least > _MAX_REPEAT or (not endless and most > _MAX_REPEAT):
            raise PatternUnsupported(f"repeats more than {_MAX_REPEAT} times")
        wide = least != most and (endless or most > _NESTED)
        if wide and self._inside_wide:
            # Such patterns are ambiguous: following them costs seconds a token, in the engine.
            raise PatternUnsupported(f"repeats a repetition, both more than {_NESTED} times")
        outer, self._inside_wide = self._inside_wide, self._inside_wide or endless or most > _NESTED
        body = self.sequence(tree)
        self._inside_wide = outer
        return repeated(body, least, None if endless else int(most))

    def _one(self, ranges: Ranges) -> str:
        found = self._char(ranges)
        if found is None:
            raise PatternUnsupported("needs a character that this format cannot hold")
        return found


def _members(items: Any) -> Ranges:
    ranges: Ranges = []
    negated = False
    for kind, value in items:
        match kind:
            case _constants.NEGATE:
                negated = True
            case _constants.LITERAL:
                ranges.append((value, value))
            case _constants.RANGE:
                ranges.append((value[0], value[1]))
            case _constants.CATEGORY:
                found, inverse = _CATEGORIES[value]
                ranges += _complement(found) if inverse else found
            case _:
                raise PatternUnsupported("has a character class that cannot be enforced")
    return _complement(ranges) if negated else _merged(ranges)


def _merged(ranges: Ranges) -> Ranges:
    merged: Ranges = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _complement(ranges: Ranges) -> Ranges:
    found: Ranges = []
    at = 0
    for low, high in _merged(ranges):
        if low > at:
            found.append((at, low - 1))
        at = high + 1
    if at <= _TOP:
        found.append((at, _TOP))
    return found


def remove(ranges: Ranges, banned: Ranges) -> Ranges:
    """Ranges without some code points."""
    return _complement(_complement(ranges) + banned)


def raw_char(ranges: Ranges, banned: Ranges) -> str | None:
    """A character of ranges as it is, leaving out surrogates and what is banned."""
    left = remove(ranges, [*banned, (0xD800, 0xDFFF)])
    return char_class(left) if left else None
