"""MiniMax-M2 tool calls.

``<minimax:tool_call>`` (``<invoke name="f">`` (``<parameter name="k">`` value ``</parameter>``)*
``</invoke>``)* ``</minimax:tool_call>``. The markers look like ordinary markup, so an invoke counts
only inside a block, and a value ends at the first closer.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gnomon.engine.serve.parsers.base import ToolSchemas
from gnomon.engine.serve.parsers.markup import Markup, MarkupLexer
from gnomon.engine.serve.parsers.tagged import TaggedTools
from gnomon.engine.serve.parsers.tags import BLOCK, INVOKE, Lexeme, Tag

_OPEN, _CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"
_NAME = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^"'\s][^"']*?))\s*""")


def _named(make: Callable[[str, str], Lexeme]) -> Callable[[str, str], Lexeme | None]:
    def lexeme(raw: str, attribute: str) -> Lexeme | None:
        found = _NAME.fullmatch(attribute)
        name = next((g for g in found.groups() if g is not None), "").strip() if found else ""
        return make(raw, name) if name else None

    return lexeme


_MARKUP = Markup(
    fixed={
        _OPEN: Tag(_OPEN, BLOCK, parameter=False),
        _CLOSE: Tag(_CLOSE, BLOCK, closing=True),
        "</invoke>": Tag("</invoke>", INVOKE, closing=True),
        "</parameter>": Tag("</parameter>", "", closing=True),
    },
    open={
        "<invoke name=": _named(lambda raw, name: Tag(raw, INVOKE, function=name)),
        "<parameter name=": _named(lambda raw, name: Tag(raw, name)),
    },
    end=">",
)


class M2Tools(TaggedTools):
    """Incremental parser over the content part of a reply."""

    def __init__(self, tools: ToolSchemas) -> None:
        super().__init__(tools, MarkupLexer(_MARKUP), nested=False, bare=False)


class M2ToolDialect:
    """How MiniMax-M2 writes tool calls."""

    markers = (_OPEN, _CLOSE)

    def parser(self, tools: ToolSchemas) -> M2Tools:
        """A parser that types arguments by the tools' schemas."""
        return M2Tools(tools)
