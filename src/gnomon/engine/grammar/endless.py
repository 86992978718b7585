"""Whether a schema that leads back to itself has values at all."""

from __future__ import annotations

from collections.abc import Mapping, Set

from gnomon.engine.grammar.nodes import Array, Node, Object, OneOf, Reference


def endless(named: Mapping[str, Node]) -> bool:
    """Whether one of the nodes has no value that ends, as an object that must hold its like.

    Args:
        named: nodes by the names of references to them; others are taken to end.
    """
    ending: set[str] = set()
    while found := {name for name in named.keys() - ending if _ends(named[name], named, ending)}:
        ending |= found
    return ending != named.keys()


def _ends(node: Node, named: Mapping[str, Node], ending: Set[str]) -> bool:
    match node:
        case Reference(name):
            return name in ending or name not in named
        case OneOf(options):
            return any(_ends(option, named, ending) for option in options)
        case Array(prefix, items, least):
            needed = [*prefix[:least], *([items] if items and least > len(prefix) else [])]
            return all(_ends(one, named, ending) for one in needed)
        case Object(members, extra, least):
            ends = [_ends(member.node, named, ending) for member in members]
            needed_end = all(
                end or not member.required for end, member in zip(ends, members, strict=True)
            )
            enough = sum(ends) >= least or (extra is not None and _ends(extra, named, ending))
            return needed_end and enough
        case _:
            return True
