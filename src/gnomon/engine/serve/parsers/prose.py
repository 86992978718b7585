"""Content around tool calls: shown as it comes, without the wire format's white space."""

from __future__ import annotations

from gnomon.engine.serve.parsers.base import ContentDelta, Event


class Prose:
    """White space before a block, and a lone newline there, is wire format and not content."""

    def __init__(self) -> None:
        self._space = ""  # shown only if more content follows it
        self._shown = False  # content was shown since the last call
        self._called = False

    @property
    def between_calls(self) -> bool:
        """Whether nothing but white space followed the last call."""
        return self._called and not self._shown

    def text(self, text: str) -> list[Event]:
        """More content."""
        text = self._space + text
        self._space = ""
        if not self._shown and not text.strip():
            self._space = text
            return []
        if text.endswith("\n"):
            text, self._space = text[:-1], "\n"
        self._shown = True
        return [ContentDelta(text)]

    def interrupt(self, *, call: bool) -> None:
        """Wire format begins or ends here; ``call`` if it is a call."""
        self._space, self._shown = "", False
        self._called = self._called or call

    def finish(self) -> list[Event]:
        """The reply is over."""
        if self._space and (self._shown or not self._called):
            return [ContentDelta(self._space)]
        return []
