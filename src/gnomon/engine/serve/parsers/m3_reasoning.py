"""MiniMax-M3 reasoning: ``<mm:think>`` … ``</mm:think>``, then the answer."""

from __future__ import annotations

from gnomon.engine.serve.parsers.think import ThinkDialect

OPEN = "<mm:think>"
CLOSE = "</mm:think>"


class M3ReasoningDialect(ThinkDialect):
    """How MiniMax-M3 writes reasoning."""

    def __init__(self) -> None:
        super().__init__(OPEN, CLOSE)
