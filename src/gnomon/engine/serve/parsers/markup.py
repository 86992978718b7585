"""A lexer for dialects whose markers are fixed spellings, some with attributes.

It works on text: a marker may come as one token or spelled out in several, and cut anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gnomon.engine.serve.parsers.base import held_suffix
from gnomon.engine.serve.parsers.tags import Lexeme, Text

_LONGEST = 4096


@dataclass(frozen=True)
class Markup:
    """The markers of one dialect.

    Attributes:
        fixed: spelling to lexeme.
        open: beginning of a marker with attributes, to what makes a lexeme of the whole marker
            and its attributes; None if they are no attributes.
        end: how a marker with attributes ends; ``<`` cannot stand in the attributes.
    """

    fixed: Mapping[str, Lexeme]
    open: Mapping[str, Callable[[str, str], Lexeme | None]]
    end: str

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every fixed beginning of a marker."""
        return (*self.fixed, *self.open)


class MarkupLexer:
    """Incremental lexer; ``rest`` is text that may still become a marker."""

    def __init__(self, markup: Markup) -> None:
        self.rest = ""
        self._markup = markup
        self._find = re.compile("|".join(map(re.escape, markup.spellings)))
        self._stop = re.compile(f"[<{re.escape(markup.end[0])}]")

    def feed(self, text: str) -> list[Lexeme]:
        """Take more text; returns the lexemes it completes."""
        self.rest += text
        found: list[Lexeme] = []
        while self.rest:
            match = self._find.search(self.rest)
            if match is None:
                start = len(self.rest) - held_suffix(self.rest, self._markup.spellings)
                if start:
                    found.append(Text(self._take(start)))
                break
            if match.start():
                found.append(Text(self._take(match.start())))
            lexeme = self._lexeme(match.group())
            if lexeme is None:
                break
            found.append(lexeme)
        return found

    def _take(self, length: int) -> str:
        taken, self.rest = self.rest[:length], self.rest[length:]
        return taken

    def _lexeme(self, spelling: str) -> Lexeme | None:
        """The lexeme at a marker; None if more text decides."""
        fixed = self._markup.fixed.get(spelling)
        if fixed is not None:
            self._take(len(spelling))
            return fixed
        after = self.rest[len(spelling) :]
        end = self._markup.end
        found = self._stop.search(after, 0, _LONGEST)
        stop = found.start() if found else -1
        if stop < 0 and len(after) < _LONGEST:
            return None
        if stop >= 0 and after[stop:] != end and end.startswith(after[stop:]):
            return None
        if stop >= 0 and after.startswith(end, stop):
            raw = self.rest[: len(spelling) + stop + len(end)]
            lexeme = self._markup.open[spelling](raw, after[:stop])
            if lexeme is not None:
                self._take(len(raw))
                return lexeme
        return Text(self._take(len(spelling)))
