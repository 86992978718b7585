"""How far a grammar lets a model run on where the schema sets no end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Ends for what a schema leaves open; None is no end.

    A trained model ends its strings and lists by itself. Random weights do not, so their
    checkpoint sets limits, and a server may.

    Attributes:
        text: characters of a free string, and of reasoning.
        items: members of a list, and calls of a block.
    """

    text: int | None = None
    items: int | None = None

    @property
    def any(self) -> bool:
        """Whether there is any."""
        return self.text is not None or self.items is not None
