"""JSON as a model writes it, checked character by character and given out as it comes.

Only text that leads to valid JSON is given out, and only once it cannot be taken back: whatever
happens next, :meth:`JsonText.close` makes the text so far a whole value. Small slips are repaired:
a comma before a closer, a key without a value, a raw control character or an unknown escape in a
string, Python's ``True``, ``False`` and ``None``. Half a surrogate pair is left out.
"""

from __future__ import annotations

import json
import re
from enum import Enum

_SPACE = " \t\n\r"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_WORD = re.compile(r"[A-Za-z0-9+\-.]+")
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,299})(\.\d{1,300})?([eE][+-]?\d{1,3})?")
_WORDS = {"true": "true", "false": "false", "null": "null",
          "True": "true", "False": "false", "None": "null"}  # fmt: skip
_ESCAPES = '"\\/bfnrt'
_MAX_DEPTH = 200
_MAX_WORD = 700


class _State(Enum):
    VALUE = "a value must come"
    FIRST_VALUE = "a value or the array's end must come"
    FIRST_KEY = "a key or the object's end must come"
    KEY = "a key must come, after a comma"
    COLON = "a colon must come"
    STRING = "inside a string"
    WORD = "inside a number or a literal"
    AFTER = "a comma or a closer must come"


class JsonText:
    """One JSON value.

    Args:
        objects: only an object will do.

    Attributes:
        begun: something was given out.
        done: the value is whole; it takes nothing more.
        broken: the text stopped being JSON; it takes nothing more.
    """

    def __init__(self, *, objects: bool = False) -> None:
        self.begun = False
        self.done = False
        self.broken = False
        self._state = _State.VALUE
        self._stack: list[str] = []  # the closers to come
        self._pending = ""  # valid so far, but not given out: what follows may undo it
        self._word = ""
        self._escape = ""
        self._high = ""  # first half of a surrogate pair
        self._in_key = False
        self._objects = objects
        self._latest: list[str] = []
        self._out: list[str] = []

    @property
    def clean(self) -> bool:
        """Whether only closers are missing."""
        return self.begun and self._state in _CLEAN and not self._pending.strip()

    @property
    def latest(self) -> str:
        """The string read last, with its quotes, if nothing has followed it yet."""
        return "".join(self._latest)

    @property
    def lost(self) -> str:
        """What was read and is not given out."""
        return self._pending + self._word

    def feed(self, text: str) -> tuple[str, int]:
        """Take more text.

        Returns:
            What can be given out now, and how many characters were taken; fewer than all of them
            once the value is done or broken.
        """
        at = 0
        while at < len(text) and not self.done and not self.broken:
            if self._state is _State.STRING:
                step = self._string(text, at)
                self._latest.append(text[at : at + step])
            else:
                step = self._step(text, at)
            at += step
        out, self._out = "".join(self._out), []
        return out, at

    def close(self) -> str:
        """What makes the text given out so far a whole value; empty if nothing was."""
        if self.done or not self.begun:
            return ""
        quote = '"' if self._state is _State.STRING and not self._in_key else ""
        closers = "".join(reversed(self._stack))
        self._stack.clear()
        self.done = True
        return quote + closers

    def _give(self, text: str) -> None:
        self.begun = True
        self._out.append(self._pending + text)
        self._pending = ""

    def _step(self, text: str, at: int) -> int:
        """Read outside strings; returns how many characters were taken."""
        char = text[at]
        if self._state is _State.WORD:
            return self._more_word(text, at)
        if char in "}],:":
            self._latest.clear()
        if char in _SPACE:
            self._pending += char if self._stack else ""
        elif char in "}]":
            return self._end(char)
        elif self._state is _State.AFTER and char == ",":
            self._pending += char
            self._state = _State.KEY if self._stack[-1] == "}" else _State.VALUE
        elif self._state is _State.COLON and char == ":":
            self._pending += char
            self._state = _State.VALUE
        elif self._state in (_State.KEY, _State.FIRST_KEY) and char == '"':
            self._start_string(char, key=True)
        elif self._state in (_State.VALUE, _State.FIRST_VALUE):
            return self._start_value(text, at)
        else:
            self.broken = True
            return 0
        return 1

    def _start_value(self, text: str, at: int) -> int:
        char = text[at]
        if self._objects and not self._stack and char != "{":
            self.broken = True
            return 0
        if char == '"':
            self._start_string(char, key=False)
        elif char in "{[":
            if len(self._stack) >= _MAX_DEPTH:
                self.broken = True
                return 0
            self._give(char)
            self._stack.append("}" if char == "{" else "]")
            self._state = _State.FIRST_KEY if char == "{" else _State.FIRST_VALUE
        elif _WORD.match(char):
            self._state = _State.WORD
            return 0
        else:
            self.broken = True
            return 0
        return 1

    def _more_word(self, text: str, at: int) -> int:
        found = _WORD.match(text, at)
        if found and len(self._word) <= _MAX_WORD:
            taken = found.group()[: _MAX_WORD + 1 - len(self._word)]
            self._word += taken
            return len(taken)
        word = _WORDS.get(self._word)
        if word is None and _NUMBER.fullmatch(self._word):
            word = self._word
        if word is None:
            self.broken = True
            return 0
        self._word = ""
        self._give(word)
        self._after_value()
        return 0

    def _end(self, char: str) -> int:
        """A closer; what is pending (a comma, a key, white space) goes."""
        if not self._stack or self._stack[-1] != char:
            self.broken = True
            return 0
        self._stack.pop()
        self._pending = ""
        self._give(char)
        self._after_value()
        return 1

    def _after_value(self) -> None:
        self._state = _State.AFTER
        self.done = not self._stack

    # Strings

    def _start_string(self, quote: str, *, key: bool) -> None:
        self._in_key = key
        self._latest = [quote]
        self._state = _State.STRING
        if key:
            self._pending += quote
        else:
            self._give(quote)

    def _string(self, text: str, at: int) -> int:
        char = text[at]
        if self._escape:
            return self._more_escape(char)
        plain = _PLAIN.match(text, at)
        if plain:
            self._write(plain.group())
            return len(plain.group())
        if char == '"':
            self._high = ""
            self._write(char)
            if self._in_key:
                self._state = _State.COLON
            else:
                self._after_value()
        elif char == "\\":
            self._escape = char
        else:
            self._write(json.dumps(char)[1:-1])
        return 1

    def _more_escape(self, char: str) -> int:
        """One more character of an escape; an unknown one is text."""
        if self._escape == "\\":
            if char == "u":
                self._escape += char
            elif char in _ESCAPES:
                self._finish_escape("\\" + char)
            else:
                self._finish_escape("\\\\")
                return 0
            return 1
        if char not in "0123456789abcdefABCDEF":
            self._finish_escape("\\" + self._escape)
            return 0
        self._escape += char
        if len(self._escape) == 6:
            self._finish_unicode(self._escape)
        return 1

    def _finish_unicode(self, escape: str) -> None:
        code = int(escape[2:], 16)
        if 0xD800 <= code < 0xDC00:
            self._high, self._escape = escape, ""
        elif 0xDC00 <= code < 0xE000:
            high, self._high, self._escape = self._high, "", ""
            if high:
                self._write(high + escape)
        else:
            self._finish_escape(escape)

    def _finish_escape(self, written: str) -> None:
        self._escape = ""
        self._write(written)

    def _write(self, text: str) -> None:
        self._high = ""
        if self._in_key:
            self._pending += text
        else:
            self._give(text)


_CLEAN = frozenset({_State.AFTER, _State.FIRST_KEY, _State.FIRST_VALUE})
