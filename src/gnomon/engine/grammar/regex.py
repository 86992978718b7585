"""The regular expressions of JSON schemas, as deterministic automata.

JSON schema searches: an expression without anchors may have anything around it. Look-around,
back-references and word boundaries are refused. Where JSON schema's dialect and Python's disagree
about a character (Is an Arabic digit one?), what is enforced is right by both.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gnomon.engine.grammar.automaton import (
    MAX_STATES,
    TOP,
    Automaton,
    Builder,
    Ranges,
    TooManyStates,
    complement,
    merged,
    minimal,
    overlap,
    without,
)
from gnomon.engine.grammar.ebnf import char_class
from gnomon.engine.grammar.keywords import SchemaUnsupported

# Python's own parser: public as sre_parse until 3.11, and without another door since.
_parser: Any = re._parser  # type: ignore[attr-defined]
_constants: Any = re._constants  # type: ignore[attr-defined]

_SURROGATES = (0xD800, 0xDFFF)
_ANYTHING: Ranges = complement([_SURROGATES])
_LONG_RUN = 64  # a longer run of one class is counted by the grammar compiler, not in states
_MAX_RUN = 100_000
_MAX_SOURCE = 16_384


class PatternUnsupported(SchemaUnsupported):
    """The expression cannot be enforced; the message says why."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__("", "pattern", why)


@dataclass(frozen=True)
class Run:
    """A text of ``least`` to ``most`` characters of one class; no end if ``most`` is None."""

    characters: Ranges
    least: int
    most: int | None

    def body(self) -> str:
        """Its grammar. A negated class is counted many times as fast as another one."""
        times = f"{{{self.least},{'' if self.most is None else self.most}}}"
        return char_class(complement(self.characters), negated=True) + times


@dataclass(frozen=True)
class Pattern:
    """An expression that can be enforced.

    Attributes:
        source: as it was written.
        short: an expression that matches a part of that, all of it short, for models that end
            nothing by themselves.
        least: characters the text must have.
        most: characters it may have; None is no end.
    """

    source: str
    short: str
    least: int = 0
    most: int | None = None

    @property
    def form(self) -> Automaton | Run:
        """What it matches.

        Raises:
            PatternUnsupported: it cannot be enforced.
        """
        return _form(self.source, True, self.least, self.most)

    def limited(self, limit: int) -> Automaton | Run:
        """A part of what it matches, of about ``limit`` characters at most where it has no end.

        Raises:
            PatternUnsupported: it cannot be enforced.
        """
        form = _form(self.short, False, self.least, self.most)
        if isinstance(form, Run):
            ends = max(form.least, limit)
            return form if form.most is not None else Run(form.characters, form.least, ends)
        if form.longest is not None:
            return form
        try:
            return form.counted(0, max(limit, form.shortest + limit // 2)) or form
        except TooManyStates:
            return form

    def may_start_with(self, characters: Ranges) -> bool:
        """Whether a match is empty or starts with one of these characters."""
        form = self.form
        if isinstance(form, Run):
            return form.least == 0 or overlap(form.characters, characters)
        return form.starts_with(characters)

    @property
    def cost(self) -> tuple[int, int]:
        """States it takes to follow it, and steps it took to find them."""
        form = self.form
        return (1, 1) if isinstance(form, Run) else (len(form.edges), form.steps)


@functools.lru_cache(maxsize=512)
def _form(source: str, around: bool, least: int, most: int | None) -> Automaton | Run:
    """What an expression matches, of the given length; ``around``: with anything around it."""
    if len(source) > _MAX_SOURCE:
        raise PatternUnsupported(f"is longer than {_MAX_SOURCE} characters")
    try:
        tree = list(_parser.parse(source))
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternUnsupported(f"is no regular expression: {error}") from None
    run = _run(tree)
    if run is not None and (least, most) == (0, None):
        return run
    try:
        found = _automaton(tree, around)
        if found is not None and (least or most is not None):
            found = found.counted(least, most)
    except (TooManyStates, RecursionError):
        raise PatternUnsupported(
            f"needs more than {MAX_STATES} states to be followed; simplify it"
        ) from None
    if found is None:
        raise PatternUnsupported("matches no text of the lengths that are asked for")
    return found


def _run(tree: list[Any]) -> Run | None:
    """The run that an anchored expression is, if it is one that takes many states."""
    if len(tree) != 3 or not (_is_start(tree[0]) and _is_end(tree[2])):
        return None
    kind, value = tree[1]
    while kind is _constants.SUBPATTERN and len(value[3]) == 1 and not (value[1] or value[2]):
        kind, value = value[3][0]
    if kind not in _REPEATS or len(value[2]) != 1:
        return None
    least, most, inner = value
    endless = most is _constants.MAXREPEAT
    if max(least, 0 if endless else most) <= _LONG_RUN:
        return None
    characters = _characters(*inner[0])
    if characters is None:
        return None
    if least > _MAX_RUN:
        raise PatternUnsupported(f"asks for more than {_MAX_RUN} characters")
    return Run(characters, int(least), None if endless else min(int(most), _MAX_RUN))


def _automaton(tree: list[Any], around: bool) -> Automaton | None:
    writer = _Writer()
    start, goal = writer.node(), writer.node()
    writer.sequence(tree, start, goal)
    if around and not _always(_is_start, tree):
        before = writer.node()
        writer.step(before, _ANYTHING, before)
        writer.free[before].append(start)
        start = before
    if around and not _always(_is_end, tree[::-1]):
        writer.step(goal, _ANYTHING, goal)
    return writer.determinised(start, goal)


def _always(is_anchor: Callable[[Any], bool], tree: list[Any]) -> bool:
    return bool(tree) and is_anchor(tree[0])


def _is_start(node: Any) -> bool:
    return node[0] is _constants.AT and node[1] in (
        _constants.AT_BEGINNING,
        _constants.AT_BEGINNING_STRING,
    )


def _is_end(node: Any) -> bool:
    return node[0] is _constants.AT and node[1] in (_constants.AT_END, _constants.AT_END_STRING)


_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)


class _Writer(Builder):
    """Writes a parsed expression as an automaton."""

    def sequence(self, tree: Any, start: int, goal: int) -> None:
        """Everything that a sequence matches, between two nodes."""
        here = start
        for kind, value in tree:
            there = self.node()
            self._one(kind, value, here, there)
            here = there
        self.free[here].append(goal)

    def _one(self, kind: Any, value: Any, start: int, goal: int) -> None:
        characters = _characters(kind, value)
        if characters is not None:
            self.step(start, characters, goal)
        elif kind is _constants.BRANCH:
            for option in value[1]:
                self.sequence(option, start, goal)
        elif kind is _constants.SUBPATTERN:
            if value[1] or value[2]:
                raise PatternUnsupported("has inline flags, which cannot be enforced")
            self.sequence(value[3], start, goal)
        elif kind in _REPEATS:
            least, most, inner = value
            self._repeat(least, most, inner, start, goal)
        elif _is_start((kind, value)):
            self.at_start[start].append(goal)
        elif _is_end((kind, value)):
            self.at_end[start].append(goal)
        else:
            raise PatternUnsupported(
                f"uses {str(kind).lower().replace('_', ' ')}, which cannot be enforced"
            )

    def _repeat(self, least: int, most: Any, tree: Any, start: int, goal: int) -> None:
        here = start
        for _ in range(least):
            there = self.node()
            self.sequence(tree, here, there)
            here = there
        if most is _constants.MAXREPEAT:
            loop = self.node()
            self.free[here].append(loop)
            self.sequence(tree, loop, loop)
            self.free[loop].append(goal)
            return
        for _ in range(most - least):
            there = self.node()
            self.free[here].append(goal)
            self.sequence(tree, here, there)
            here = there
        self.free[here].append(goal)


def _characters(kind: Any, value: Any) -> Ranges | None:
    """The characters that a node is one of; None if it is more than a character."""
    if kind is _constants.LITERAL:
        return [(value, value)]
    if kind is _constants.NOT_LITERAL:
        return without(_ANYTHING, [(value, value)])
    if kind is _constants.ANY:
        return without(_ANYTHING, [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)])
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
    return without(_ANYTHING, ranges) if negated else without(merged(ranges), [_SURROGATES])


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


def restricted(form: Automaton | Run, spelled: Ranges) -> Automaton | Run:
    """Only the texts of some characters.

    Raises:
        PatternUnsupported: there are none.
    """
    if isinstance(form, Run):
        left = without(form.characters, complement(spelled))
        if not left and form.least:
            raise PatternUnsupported("needs a character that this format cannot hold")
        return Run(left, form.least, form.most if left else 0)
    banned = complement(spelled)
    edges = [
        {to: left for to, ranges in row.items() if (left := without(ranges, banned))}
        for row in form.edges
    ]
    found = minimal(edges, set(form.final))
    if found is None:
        raise PatternUnsupported("needs a character that this format cannot hold")
    return found


def remove(ranges: Ranges, banned: Ranges) -> Ranges:
    """Ranges without some code points."""
    return without(ranges, banned)


def raw_char(ranges: Ranges, banned: Ranges) -> str | None:
    """A character of ranges as it is, leaving out surrogates and what is banned."""
    left = without(ranges, [*banned, _SURROGATES])
    return char_class(left) if left else None
