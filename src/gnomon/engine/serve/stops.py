"""Stop strings: where generated text ends before any of them."""

from __future__ import annotations

from collections.abc import Sequence

from gnomon.engine.serve.parsers.base import held_suffix


class StopStrings:
    """Incremental search. Text that may be the start of a stop string is held back.

    Of several, the one that is complete first counts, as if text came character by character.

    Args:
        stops: the strings.
        include: give out the one that is found, too.

    Attributes:
        found: a stop string has been seen; no more text comes out.
        found_stop: which one; None before.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.found = False
        self.found_stop: str | None = None

    def feed(self, text: str) -> str:
        """Text that is certainly before any stop string."""
        if not self._stops or self.found:
            return "" if self.found else text
        self._held += text
        starts = [(self._held.find(stop), stop) for stop in self._stops]
        found = [(at + len(stop), at, stop) for at, stop in starts if at >= 0]
        if found:
            self.found = True
            end, start, self.found_stop = min(found)
            shown, self._held = self._held[: end if self._include else start], ""
            return shown
        keep = len(self._held) - held_suffix(self._held, self._stops)
        shown, self._held = self._held[:keep], self._held[keep:]
        return shown

    def finish(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held
