"""Deterministic automata over characters: what makes a regular expression cheap to follow.

An expression may match one text in many ways, and following all of them costs seconds a token. A
deterministic automaton follows one. Determinising can need exponentially many states, so all of
this is bounded, and what is beyond the bounds is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gnomon.engine.grammar.ranges import Ranges, merged, overlap

MAX_STATES = 1024
_MAX_NODES = 8192
_MAX_STEPS = 200_000


class TooManyStates(Exception):
    """The automaton would be larger than what is followed."""


@dataclass(frozen=True)
class Automaton:
    """A deterministic automaton without dead ends.

    Attributes:
        edges: of every state, the characters that lead to each next state; state 0 is the start.
        final: states in which a text may end.
        steps: what it took to find it.
    """

    edges: Sequence[Mapping[int, Ranges]]
    final: frozenset[int]
    steps: int = 0

    @property
    def shortest(self) -> int:
        """Characters of the shortest text."""
        reached, length = {0}, 0
        while not reached & self.final:
            reached = {to for state in reached for to in self.edges[state]}
            length += 1
        return length

    @property
    def longest(self) -> int | None:
        """Characters of the longest text; None if there is no end."""
        order = self._order()
        if order is None:
            return None
        lengths = [0] * len(self.edges)
        for state in reversed(order):
            lengths[state] = max((1 + lengths[to] for to in self.edges[state]), default=0)
        return lengths[0]

    def _order(self) -> list[int] | None:
        """States before those they lead to; None if there is a cycle."""
        incoming = [0] * len(self.edges)
        for targets in self.edges:
            for to in targets:
                incoming[to] += 1
        order = [0] if incoming[0] == 0 else []
        for state in order:
            for to in self.edges[state]:
                incoming[to] -= 1
                if incoming[to] == 0:
                    order.append(to)
        return order if len(order) == len(self.edges) else None

    def starts_with(self, characters: Ranges) -> bool:
        """Whether a text is empty or starts with one of these characters."""
        return 0 in self.final or any(
            overlap(ranges, characters) for ranges in self.edges[0].values()
        )

    def counted(self, least: int, most: int | None) -> Automaton | None:
        """Only the texts of ``least`` to ``most`` characters; None if there are none.

        Raises:
            TooManyStates: that takes too many states.
        """
        cap = least if most is None else most
        numbers = {(0, 0): 0}
        waiting = [(0, 0)]
        edges: list[dict[int, Ranges]] = [{}]
        for state, count in waiting:
            if most is not None and count == most:
                continue
            for to, ranges in self.edges[state].items():
                pair = (to, min(count + 1, cap))
                if pair not in numbers:
                    numbers[pair] = len(numbers)
                    waiting.append(pair)
                    edges.append({})
                    if len(edges) > 4 * MAX_STATES:
                        raise TooManyStates
                here = edges[numbers[state, count]]
                here[numbers[pair]] = merged([*here.get(numbers[pair], ()), *ranges])
        final = {n for (state, count), n in numbers.items()
                 if state in self.final and count >= least}  # fmt: skip
        found = minimal(edges, final)
        return found and replace(found, steps=self.steps)


@dataclass
class Builder:
    """A non-deterministic automaton, and the deterministic one that matches the same.

    Edges have a set of characters, or none: those are free, or may be taken only before the first
    or after the last character.
    """

    steps: list[list[tuple[int, int]]] = field(default_factory=list)  # of nodes: set, target
    free: list[list[int]] = field(default_factory=list)
    at_start: list[list[int]] = field(default_factory=list)
    at_end: list[list[int]] = field(default_factory=list)
    _sets: dict[tuple[tuple[int, int], ...], int] = field(default_factory=dict)

    def node(self) -> int:
        """A new node.

        Raises:
            TooManyStates: there are too many.
        """
        if len(self.free) >= _MAX_NODES:
            raise TooManyStates
        for table in (self.steps, self.free, self.at_start, self.at_end):
            table.append([])
        return len(self.free) - 1

    def step(self, node: int, characters: Ranges, to: int) -> None:
        """An edge over one of some characters."""
        if characters:
            number = self._sets.setdefault(tuple(characters), len(self._sets))
            self.steps[node].append((number, to))

    def determinised(self, start: int, goal: int) -> Automaton | None:
        """The least deterministic automaton; None if it matches nothing.

        Raises:
            TooManyStates: it would be too large.
        """
        symbols = _symbols(list(self._sets))
        budget = [_MAX_STEPS]
        first = self._closure([start], budget, first=True)
        numbers = {first: 0}
        waiting = [first]
        rows: list[dict[int, set[int]]] = [{}]  # of states: target to symbols
        for here in waiting:
            targets: dict[int, set[int]] = defaultdict(set)
            for node, ended in here:
                if not ended:
                    for number, to in self.steps[node]:
                        targets[number].add(to)
            budget[0] -= len(symbols)
            for symbol, (members, _) in enumerate(symbols):
                reached: set[int] = set()
                for number in members & targets.keys():
                    reached |= targets[number]
                if not reached:
                    continue
                state = self._closure(reached, budget, first=False)
                if state not in numbers:
                    if len(numbers) >= 4 * MAX_STATES:
                        raise TooManyStates
                    numbers[state] = len(numbers)
                    waiting.append(state)
                    rows.append({})
                rows[numbers[here]].setdefault(numbers[state], set()).add(symbol)
        final = {
            number for state, number in numbers.items() if any(node == goal for node, _ in state)
        }
        found = _minimal(rows, final, [ranges for _, ranges in symbols])
        return found and replace(found, steps=_MAX_STEPS - budget[0])

    def _closure(
        self, nodes: Iterable[int], budget: list[int], *, first: bool
    ) -> frozenset[tuple[int, bool]]:
        """What is reached without a character; ``(node, True)`` if none may follow."""
        waiting = [(node, False) for node in nodes]
        found = set(waiting)
        while waiting:
            node, ended = waiting.pop()
            budget[0] -= 1 + len(self.steps[node])
            if budget[0] < 0:
                raise TooManyStates
            more = [(to, ended) for to in self.free[node]]
            more += [(to, True) for to in self.at_end[node]]
            if first:
                more += [(to, ended) for to in self.at_start[node]]
            for pair in more:
                if pair not in found:
                    found.add(pair)
                    waiting.append(pair)
        return frozenset(found)


def _symbols(sets: Sequence[tuple[tuple[int, int], ...]]) -> list[tuple[frozenset[int], Ranges]]:
    """Characters that no set tells apart, with the sets that hold them."""
    events: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    for number, ranges in enumerate(sets):
        for low, high in ranges:
            events[low].append((number, True))
            events[high + 1].append((number, False))
    found: dict[frozenset[int], Ranges] = defaultdict(list)
    inside: set[int] = set()
    places = sorted(events)
    for at, place in enumerate(places):
        for number, opens in events[place]:
            (inside.add if opens else inside.discard)(number)
        if inside and at + 1 < len(places):
            found[frozenset(inside)].append((place, places[at + 1] - 1))
    return list(found.items())


def minimal(edges: Sequence[Mapping[int, Ranges]], final: set[int]) -> Automaton | None:
    """The least automaton that matches the same, without dead ends; None if it matches nothing.

    Raises:
        TooManyStates: it is too large.
    """
    sets = list({tuple(ranges): None for row in edges for ranges in row.values()})
    symbols = _symbols(sets)
    inside: dict[tuple[tuple[int, int], ...], set[int]] = {ranges: set() for ranges in sets}
    for symbol, (members, _) in enumerate(symbols):
        for number in members:
            inside[sets[number]].add(symbol)
    rows = [{to: inside[tuple(ranges)] for to, ranges in row.items()} for row in edges]
    return _minimal(rows, final, [ranges for _, ranges in symbols])


def _minimal(
    edges: Sequence[Mapping[int, set[int]]], final: set[int], symbols: Sequence[Ranges]
) -> Automaton | None:
    """The same, of edges over symbols, which are disjoint sets of characters."""
    alive = _alive(edges, final)
    if 0 not in alive:
        return None
    rows = {
        state: {to: over for to, over in edges[state].items() if to in alive}
        for state in sorted(alive)
    }
    group = _partition(rows, final, len(symbols))
    numbers = {group[0]: 0}
    for state in rows:
        numbers.setdefault(group[state], len(numbers))
    if len(numbers) > MAX_STATES:
        raise TooManyStates
    found: list[dict[int, set[int]]] = [{} for _ in numbers]
    for state, row in rows.items():
        for to, over in row.items():
            found[numbers[group[state]]].setdefault(numbers[group[to]], set()).update(over)
    known: dict[frozenset[int], Ranges] = {}

    def ranges(over: set[int]) -> Ranges:
        key = frozenset(over)
        if key not in known:
            known[key] = merged(pair for symbol in key for pair in symbols[symbol])
        return known[key]

    return Automaton(
        [{to: ranges(over) for to, over in row.items()} for row in found],
        frozenset(numbers[group[state]] for state in alive & final),
    )


def _alive(edges: Sequence[Mapping[int, object]], final: set[int]) -> set[int]:
    """States from which an end can be reached."""
    sources: dict[int, list[int]] = defaultdict(list)
    for state, row in enumerate(edges):
        for to in row:
            sources[to].append(state)
    alive, waiting = set(final), list(final)
    while waiting:
        for source in sources[waiting.pop()]:
            if source not in alive:
                alive.add(source)
                waiting.append(source)
    return alive


def _partition(
    rows: Mapping[int, Mapping[int, set[int]]], final: set[int], symbols: int
) -> dict[int, int]:
    """A number for every state, the same for states that match the same (Hopcroft's algorithm)."""
    sources: dict[tuple[int, int], list[int]] = defaultdict(list)  # target, symbol -> states
    for state, row in rows.items():
        for to, over in row.items():
            for symbol in over:
                sources[to, symbol].append(state)
    blocks = [block for block in ({*rows} & final, {*rows} - final) if block]
    group = {state: number for number, block in enumerate(blocks) for state in block}
    waiting = {(number, symbol) for number in range(len(blocks)) for symbol in range(symbols)}
    while waiting:
        number, symbol = waiting.pop()
        touched: dict[int, set[int]] = defaultdict(set)
        for to in blocks[number]:
            for state in sources.get((to, symbol), ()):
                touched[group[state]].add(state)
        for old, part in touched.items():
            if len(part) == len(blocks[old]):
                continue
            rest = blocks[old] - part
            small, large = (part, rest) if len(part) <= len(rest) else (rest, part)
            blocks[old] = large
            blocks.append(small)
            new = len(blocks) - 1
            group.update(dict.fromkeys(small, new))
            waiting |= {(new, other) for other in range(symbols)}
    return group
