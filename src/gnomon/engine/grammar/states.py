"""Automata as grammar rules: one a state, each text in exactly one way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gnomon.engine.grammar.automaton import Automaton
from gnomon.engine.grammar.ebnf import Grammar
from gnomon.engine.grammar.ranges import Ranges


def written(
    grammar: Grammar, automaton: Automaton, spell: Callable[[Ranges], Sequence[str]], end: str
) -> str:
    """Name of a rule for the texts of an automaton.

    Args:
        grammar: to write into.
        automaton: of characters that ``spell`` can spell.
        spell: the bodies of one character out of ranges; no text may fit two of them.
        end: the body of what follows the text. It belongs to the rules, so that a token that goes
            up to it is known to fit before it is met.
    """
    names = [grammar.declare() for _ in automaton.edges]
    for state, row in enumerate(automaton.edges):
        options = [end] if state in automaton.final else []
        for to, ranges in row.items():
            options += [f"{body} {names[to]}" for body in spell(ranges)]
        grammar.define(names[state], " | ".join(options))
    return names[0]
