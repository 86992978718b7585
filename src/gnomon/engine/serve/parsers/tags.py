"""What a lexer of a tagged tool-call dialect finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text, possibly part of a longer stretch."""

    raw: str


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace token that no tag follows (MiniMax-M3)."""

    raw: str


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A marker around content, which is no part of it (Kimi K3's channels)."""

    raw: str


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag.

    Attributes:
        raw: as it was written.
        name: the parameter's, else ``invoke`` or ``tool_call``; empty for a closer that names
            nothing and so ends whatever parameter is open.
        closing: it is a closer.
        function: name of the called function if this opens an invoke.
        parameter: it may open a parameter.
        hint: JSON type that the model names for the value.
    """

    raw: str
    name: str
    closing: bool = False
    function: str | None = None
    parameter: bool = True
    hint: str | None = None


Lexeme = Text | Namespace | Wrapper | Tag

BLOCK = "tool_call"
INVOKE = "invoke"


class Lexer(Protocol):
    """Incremental lexer; ``rest`` is text that may still become a tag."""

    rest: str

    def feed(self, text: str) -> list[Lexeme]:
        """Take more text; returns the lexemes it completes."""
        ...
