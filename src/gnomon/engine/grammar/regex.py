"""The regular expressions of JSON schemas, as deterministic automata.

JSON schema searches: an expression without anchors may have anything around it. Look-around,
back-references and word boundaries are refused. Where JSON schema's dialect and Python's disagree
about a character (Is an Arabic digit one?), what is enforced is right by both.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from gnomon.engine.grammar.automaton import (
    MAX_STATES,
    Automaton,
    Builder,
    TooManyStates,
    minimal,
)
from gnomon.engine.grammar.classes import ANYTHING, PatternUnsupported, characters_of
from gnomon.engine.grammar.ebnf import char_class
from gnomon.engine.grammar.ranges import SURROGATES, Ranges, complement, overlap, without

# Python's own parser: public as sre_parse until 3.11, and without another door since.
_parser: Any = re._parser  # type: ignore[attr-defined]
_constants: Any = re._constants  # type: ignore[attr-defined]

_LONG_RUN = 64  # a longer run of one class is counted by the grammar compiler, not in states
_MAX_RUN = 100_000
_MAX_SOURCE = 16_384


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
    run = _run(tree, least, most)
    if run is not None:
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


def _run(tree: list[Any], shortest: int, longest: int | None) -> Run | None:
    """The run that an anchored expression is, if it is one that takes many states."""
    if len(tree) != 3 or not (_is_start(tree[0]) and _is_end(tree[2])):
        return None
    kind, value = tree[1]
    while kind is _constants.SUBPATTERN and len(value[3]) == 1 and not (value[1] or value[2]):
        kind, value = value[3][0]
    if kind not in _REPEATS or len(value[2]) != 1:
        return None
    characters = characters_of(*value[2][0])
    if characters is None:
        return None
    ends = [end for end in (value[1], longest) if end not in (None, _constants.MAXREPEAT)]
    least, most = max(int(value[0]), shortest), min(map(int, ends), default=None)
    if max(least, most or 0) <= _LONG_RUN or (most is not None and most < least):
        return None
    if least > _MAX_RUN:
        raise PatternUnsupported(f"asks for more than {_MAX_RUN} characters")
    return Run(characters, least, None if most is None else min(most, _MAX_RUN))


def _automaton(tree: list[Any], around: bool) -> Automaton | None:
    writer = _Writer()
    start, goal = writer.node(), writer.node()
    writer.sequence(tree, start, goal)
    if around and not (tree and _is_start(tree[0])):
        before = writer.node()
        writer.step(before, ANYTHING, before)
        writer.free[before].append(start)
        start = before
    if around and not (tree and _is_end(tree[-1])):
        writer.step(goal, ANYTHING, goal)
    return writer.determinised(start, goal)


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
        characters = characters_of(kind, value)
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


def raw_char(ranges: Ranges, banned: Ranges) -> str | None:
    """A character of ranges as it is, leaving out surrogates and what is banned."""
    left = without(ranges, [*banned, SURROGATES])
    return char_class(left) if left else None
