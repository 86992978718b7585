"""MiniMax-M3 tool calls: every tag behind the namespace token.

``NS<tool_call>`` (``NS<invoke name="f">`` (``NS<key>`` value ``NS</key>``)* ``NS</invoke>``)*
``NS</tool_call>``; values may hold elements of their own.
"""

from __future__ import annotations

from gnomon.engine.serve.parsers.base import ToolSchemas
from gnomon.engine.serve.parsers.m3_lexer import NAMESPACE, M3Lexer
from gnomon.engine.serve.parsers.tagged import TaggedTools


class M3Tools(TaggedTools):
    """Incremental parser over the content part of a reply."""

    def __init__(self, tools: ToolSchemas) -> None:
        super().__init__(tools, M3Lexer())


class M3ToolDialect:
    """How MiniMax-M3 writes tool calls."""

    markers = (NAMESPACE,)

    def parser(self, tools: ToolSchemas) -> M3Tools:
        """A parser that types arguments by the tools' schemas."""
        return M3Tools(tools)
