"""Writing a grammar: rules that name each other, in the EBNF dialect of xgrammar."""

from __future__ import annotations

from collections.abc import Iterable

_MAX_BYTES = 512 * 1024
EMPTY = '""'


class GrammarTooLarge(Exception):
    """The grammar of a request would be larger than what is compiled."""


class Grammar:
    """Rules so far. A body that was seen before gets the name it had."""

    def __init__(self) -> None:
        self._rules: dict[str, str | None] = {}
        self._names: dict[str, str] = {}
        self._bytes = 0

    def rule(self, body: str) -> str:
        """Name of a rule with this body."""
        name = self._names.get(body)
        if name is None:
            name = self.declare()
            self.define(name, body)
            self._names[body] = name
        return name

    def declare(self) -> str:
        """A name whose body comes later, for rules that lead back to themselves."""
        name = f"r{len(self._rules)}"
        self._rules[name] = None
        return name

    def define(self, name: str, body: str) -> None:
        """Give a declared name its body.

        Raises:
            GrammarTooLarge: the text of all rules has become too long.
        """
        self._rules[name] = body
        self._bytes += len(name) + len(body)
        if self._bytes > _MAX_BYTES:
            raise GrammarTooLarge(
                f"the grammar of these schemas is larger than {_MAX_BYTES // 1024} KiB"
            )

    def source(self, root: str) -> str:
        """The whole grammar, starting at ``root``."""
        lines = [f"root ::= {root}"]
        lines += [f"{name} ::= {body}" for name, body in self._rules.items() if body is not None]
        return "\n".join(lines) + "\n"


def literal(text: str) -> str:
    """A string literal."""
    return '"' + "".join(map(_escaped, text)) + '"'


def either(options: Iterable[str]) -> str:
    """One of several; in brackets, unless it is one."""
    found = list(dict.fromkeys(options))
    return found[0] if len(found) == 1 else "(" + " | ".join(found) + ")"


def optional(body: str) -> str:
    """Something or nothing."""
    return f"({body})?"


def repeated(body: str, least: int, most: int | None) -> str:
    """``least`` to ``most`` times, without end if None."""
    if most is None:
        return f"({body})" + ("*" if least == 0 else "+" if least == 1 else f"{{{least},}}")
    return EMPTY if most == 0 else f"({body}){{{least},{most}}}"


def without(*markers: str) -> str:
    """Any text in which no marker occurs."""
    excluded = ", ".join(map(literal, markers))
    return f"TagDispatch(loop_after_dispatch=false, excludes=({excluded}))"


def char_class(ranges: Iterable[tuple[int, int]], *, negated: bool = False) -> str:
    """A character of (or outside of) ranges of code points, both ends included."""
    inside = "".join(
        _code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in ranges
    )
    return f"[{'^' if negated else ''}{inside}]"


def _escaped(char: str) -> str:
    return "\\" + char if char in '"\\' else char if 0x20 <= ord(char) < 0x7F else _code(ord(char))


def _code(point: int) -> str:
    if 0x30 <= point <= 0x39 or 0x41 <= point <= 0x5A or 0x61 <= point <= 0x7A:
        return chr(point)
    if point == 0x2D:
        return "\\-"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
