"""The characters that a part of a regular expression is one of.

Where JSON schema's dialect and Python's disagree about a character (Is an Arabic digit one?), what
is enforced is right by both.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from gnomon.engine.grammar.keywords import SchemaUnsupported
from gnomon.engine.grammar.ranges import SURROGATES, TOP, Ranges, complement, merged, without

_constants: Any = re._constants  # type: ignore[attr-defined]

ANYTHING: Ranges = complement([SURROGATES])


class PatternUnsupported(SchemaUnsupported):
    """The expression cannot be enforced; the message says why."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__("", "pattern", why)


def characters_of(kind: Any, value: Any) -> Ranges | None:
    """The characters that a node is one of; None if it is more than a character."""
    if kind is _constants.LITERAL:
        return [(value, value)]
    if kind is _constants.NOT_LITERAL:
        return without(ANYTHING, [(value, value)])
    if kind is _constants.ANY:
        return without(ANYTHING, [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)])
    if kind is _constants.IN:
        return _members(value)
    return None


def _members(items: Any) -> Ranges:
    negated = bool(items) and items[0][0] is _constants.NEGATE
    ranges: Ranges = []
    for kind, value in items[negated:]:
        match kind:
            case _constants.LITERAL:
                ranges.append((value, value))
            case _constants.RANGE:
                ranges.append((value[0], value[1]))
            case _constants.CATEGORY:
                ranges += _category(value, wide=negated)
            case _:
                raise PatternUnsupported("has a character class that cannot be enforced")
    return without(ANYTHING, ranges) if negated else without(merged(ranges), [SURROGATES])


def _category(value: Any, *, wide: bool) -> Ranges:
    r"""A class such as ``\d``: what every dialect counts to it, or (wide) what any one does."""
    base = _INVERSE.get(value)
    if base is None:
        return _broad(value) if wide else _NARROW[value]
    return complement(_NARROW[base] if wide else _broad(base))


_NARROW: dict[Any, Ranges] = {
    _constants.CATEGORY_DIGIT: [(0x30, 0x39)],
    _constants.CATEGORY_WORD: [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
    _constants.CATEGORY_SPACE: [(0x09, 0x0D), (0x20, 0x20)],
}
_INVERSE = {
    _constants.CATEGORY_NOT_DIGIT: _constants.CATEGORY_DIGIT,
    _constants.CATEGORY_NOT_WORD: _constants.CATEGORY_WORD,
    _constants.CATEGORY_NOT_SPACE: _constants.CATEGORY_SPACE,
}


@functools.cache
def _broad(category: Any) -> Ranges:
    """What Python, or JSON schema's dialect, counts to a class."""
    if category is _constants.CATEGORY_SPACE:
        return merged([(p, p) for p in _points() if chr(p).isspace()] + [(0xFEFF, 0xFEFF)])
    if category is _constants.CATEGORY_DIGIT:
        return merged((p, p) for p in _points() if unicodedata.category(chr(p)) == "Nd")
    return merged((p, p) for p in _points() if chr(p).isalnum() or p == 0x5F)


def _points() -> Iterator[int]:
    return iter(range(TOP + 1))
