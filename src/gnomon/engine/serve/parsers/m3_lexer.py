"""Cutting MiniMax-M3 text into plain text and namespaced tags.

Only the namespace token starts a tag: every other ``<`` is text. A marker may arrive as one token
or spelled out in several, and cut anywhere, so this works on text.
"""

from __future__ import annotations

import re

from gnomon.engine.serve.parsers.base import held_suffix
from gnomon.engine.serve.parsers.tags import Lexeme, Namespace, Tag, Text

NAMESPACE = "]<]minimax[>["
_BARE_INVOKE = "invoke name="  # an invoke whose "<" the model dropped
_MAX_TAG = 4096
_INVOKE = re.compile(r"""invoke\s+name\s*=\s*(?:"([^"]*)"|'([^']*)'|(.*?))\s*""", re.DOTALL)


class M3Lexer:
    """Incremental lexer; ``rest`` is text that may still become a tag."""

    def __init__(self) -> None:
        self.rest = ""

    def feed(self, text: str) -> list[Lexeme]:
        """Take more text; returns the lexemes it completes."""
        self.rest += text
        found: list[Lexeme] = []
        while self.rest:
            start = self.rest.find(NAMESPACE)
            if start < 0:
                start = len(self.rest) - held_suffix(self.rest, (NAMESPACE,))
                if start:
                    found.append(Text(self._take(start)))
                break
            if start:
                found.append(Text(self._take(start)))
            lexeme = self._tag()
            if lexeme is None:
                break
            found.append(lexeme)
        return found

    def _take(self, length: int) -> str:
        taken, self.rest = self.rest[:length], self.rest[length:]
        return taken

    def _tag(self) -> Lexeme | None:
        """The lexeme at a namespace token; None if more text decides."""
        after = self.rest[len(NAMESPACE) :]
        bare = after.lstrip(" ")
        if after.startswith("<"):
            skip = 1
        elif bare.startswith(_BARE_INVOKE):
            skip = len(after) - len(bare)
        elif _BARE_INVOKE.startswith(bare):  # the empty string too
            return None
        else:
            return Namespace(self._take(len(NAMESPACE)))
        end = after.find(">")
        if end < 0 and len(after) <= _MAX_TAG and NAMESPACE not in after:
            return None
        body = after[skip:end]
        if 0 <= end <= _MAX_TAG and body.endswith(NAMESPACE[:-2]):  # this ">" may be a namespace's
            if len(after) == end + 1:
                return None
            if after[end + 1] == NAMESPACE[-1]:
                end = -1
        if not 0 <= end <= _MAX_TAG:
            return Text(self._take(len(NAMESPACE) + skip))  # no tag: the next namespace starts anew
        raw = self._take(len(NAMESPACE) + end + 1)
        closing = body.startswith("/")
        name = body[1:] if closing else body
        return Tag(raw, name, closing, None if closing else _function(name))


def _function(name: str) -> str | None:
    """Name of the called function if this opens an invoke, else None."""
    found = _INVOKE.fullmatch(name)
    return next((g for g in found.groups() if g is not None), "").strip() if found else None
