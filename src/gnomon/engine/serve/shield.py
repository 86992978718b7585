"""Keeping marker text that users wrote from becoming markers.

A prompt is rendered as one text, in which a marker written by the template and the same characters
in a message look alike. So before rendering, every marker inside a string of the request is
replaced by a private-use character, and after rendering these pieces are encoded as plain text.
A marker can also arise where a string meets the template's text or another string; there the
string's outer character is preceded by a private-use character, and a marker that contains it is
encoded as plain text too. Everything else is tokenised exactly as without the shield.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_FIRST, _LAST = 0xF0000, 0xFFFFD  # Supplementary Private Use Area A
_PRIVATE = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")


class NoSpareCharacter(Exception):
    """The request uses up the private-use characters."""


@dataclass(frozen=True)
class Piece:
    """A stretch of a prompt; in a plain one, markers are ordinary characters."""

    text: str
    plain: bool


class Shield:
    """Protects one request.

    Args:
        markers: every spelling the tokenizer turns into one added token.
        values: all parts of the request that will be rendered.
    """

    def __init__(self, markers: Sequence[str], *values: Any) -> None:
        self._markers = sorted(set(markers), key=len, reverse=True)
        self._find = re.compile("|".join(map(re.escape, self._markers)) or "(?!)")
        used = {char for text in _strings(values) for char in _PRIVATE.findall(text)}
        spare = (chr(c) for c in range(_FIRST, _LAST + 1) if chr(c) not in used)
        try:
            self._edge = next(spare)
            self._stand_in = {marker: next(spare) for marker in self._markers}
        except StopIteration:
            raise NoSpareCharacter("the request has too many private-use characters") from None
        self._meaning = {char: marker for marker, char in self._stand_in.items()}
        self._heads = tuple({m[:n] for m in self._markers for n in range(1, len(m))})
        self._tails = tuple({m[n:] for m in self._markers for n in range(1, len(m))})

    def cover(self, value: Any) -> Any:
        """The value with every string in it protected, object keys included."""
        match value:
            case str():
                return self._cover_text(value)
            case Mapping():
                return {self.cover(key): self.cover(member) for key, member in value.items()}
            case list() | tuple():
                return [self.cover(member) for member in value]
            case _:
                return value

    def pieces(self, rendered: str) -> list[Piece]:
        """Cut a prompt rendered from covered values into what is encoded alike."""
        special = re.compile(f"([{self._edge}{''.join(self._meaning)}])")
        found: list[Piece] = []
        text, users = "", set[int]()
        for part in special.split(rendered):
            if part == self._edge:
                users.add(len(text))
            elif part in self._meaning:
                found += self._checked(text, users)
                found.append(Piece(self._meaning[part], plain=True))
                text, users = "", set()
            else:
                text += part
        return found + list(self._checked(text, users))

    def _cover_text(self, text: str) -> str:
        text = self._find.sub(lambda match: self._stand_in[match.group()], text)
        edges = set()
        if text.startswith(self._tails):
            edges.add(0)
        if text.endswith(self._heads):
            edges.add(len(text) - 1)
        for at in sorted(edges, reverse=True):
            text = text[:at] + self._edge + text[at:]
        return text

    def _checked(self, text: str, users: set[int]) -> Iterator[Piece]:
        """Cut out what users wrote of the markers that contain a character of theirs."""
        start = at = 0
        while users and (match := self._find.search(text, at)):
            theirs = users.intersection(range(*match.span()))
            at = match.end()
            if theirs:
                at = max(theirs) + 1  # the template's part may begin a real marker
                yield from _ordinary(text[start : match.start()])
                yield Piece(text[match.start() : at], plain=True)
                start = at
        yield from _ordinary(text[start:])


def _ordinary(text: str) -> Iterator[Piece]:
    if text:
        yield Piece(text, plain=False)


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for key, member in value.items():
                yield from _strings(key)
                yield from _strings(member)
        case list() | tuple():
            for member in value:
                yield from _strings(member)
