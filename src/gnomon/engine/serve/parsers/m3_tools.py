"""MiniMax-M3 tool calls: a block of invokes, every tag behind the namespace token.

The grammar is ``NS<tool_call>`` (``NS<invoke name="f">`` (``NS<key>`` value ``NS</key>``)*
``NS</invoke>``)* ``NS</tool_call>``. Models deviate from it; what is accepted besides:

* a missing opening tag of a parameter (``NS value NS</key>``, vLLM #51073);
* an invoke without its ``<`` (vllm-gaudi #1724), or outside a block;
* missing closers: the next tag that can only follow the end implies it;
* text between and after calls, which is content.

A block that holds no call is content, as it was written. Nothing latches: the next invoke is read
whatever came before. A reply cut inside a call ends it as valid JSON, marked incomplete.
"""

from __future__ import annotations

from enum import Enum

from gnomon.engine.serve.parsers.base import (
    ContentDelta,
    Event,
    ToolSchemas,
    loose_end,
    merge,
)
from gnomon.engine.serve.parsers.m3_call import Call, Raw, Tree
from gnomon.engine.serve.parsers.m3_lexer import NAMESPACE, Lexeme, M3Lexer, Namespace, Tag, Text

_BLOCK = "tool_call"
_INVOKE = "invoke"


class _State(Enum):
    TEXT = "outside blocks"
    OPENED = "in a block that has no call yet"
    BLOCK = "in a block, between calls"
    CALL = "in a call"


class M3Tools:
    """Incremental parser over the content part of a reply.

    Args:
        tools: the functions offered; calls of others are passed on, all arguments as strings.
    """

    def __init__(self, tools: ToolSchemas) -> None:
        self._tools = tools
        self._lexer = M3Lexer()
        self._state = _State.TEXT
        self._call: Call | None = None
        self._calls = 0
        self._events: list[Event] = []
        self._block = ""  # what was read of a block that may turn out to hold no call
        self._space = ""  # white space that is shown only if more content follows it
        self._shown = False  # content was shown since the last call
        self._stray = ""  # text between two parameters

    def feed(self, text: str) -> list[Event]:
        """Take more text."""
        for lexeme in self._lexer.feed(text):
            self._take(lexeme)
        return self._emitted()

    def finish(self, *, truncated: bool) -> list[Event]:
        """Take the end of the text; ``truncated`` if a token limit cut it."""
        rest, self._lexer.rest = self._lexer.rest, ""
        if truncated:
            rest = self._cut(rest)
        if rest:
            self._take(Text(rest))
        if self._call is not None:
            self._end_call(complete=not truncated and self._call.param is None)
        elif self._state is _State.OPENED and not truncated:
            self._give_up_block("")
        if self._space and (self._shown or self._calls == 0):
            self._events.append(ContentDelta(self._space))
        return self._emitted()

    def _cut(self, rest: str) -> str:
        """What of a possible marker at the cut is text: none where only a marker can stand."""
        in_value = self._call is not None and self._call.param is not None
        text_here = in_value or self._state is _State.TEXT
        return loose_end(rest, truncated=True) if text_here else ""

    def _emitted(self) -> list[Event]:
        if self._call is not None:
            self._events += self._call.events
            self._call.events.clear()
        events, self._events = merge(self._events), []
        return events

    def _take(self, lexeme: Lexeme) -> None:
        param = self._call.param if self._call is not None else None
        if isinstance(param, Raw) and param.quoted and isinstance(lexeme, Tag) and lexeme.function:
            param.quoted.append(_INVOKE)
            param.text(lexeme.raw)
        elif isinstance(lexeme, Tag) and lexeme.function:
            self._start_call(lexeme.function)
        elif self._call is None:
            self._outside(lexeme)
        elif param is None:
            self._between_parameters(self._call, lexeme)
        elif isinstance(lexeme, Tag):
            self._in_parameter(self._call, lexeme)
        else:
            param.text(lexeme.raw)

    # Outside calls

    def _outside(self, lexeme: Lexeme) -> None:
        tag = lexeme.name.strip() if isinstance(lexeme, Tag) else None
        if self._state is _State.OPENED:
            if isinstance(lexeme, Text) and not lexeme.raw.strip():
                self._block += lexeme.raw
            else:
                self._give_up_block(lexeme.raw)
        elif tag == _BLOCK and isinstance(lexeme, Tag):
            if self._state is _State.TEXT and not lexeme.closing:
                self._state, self._block = _State.OPENED, lexeme.raw
            elif self._state is _State.BLOCK and lexeme.closing:
                self._state, self._space, self._shown = _State.TEXT, "", False
            elif self._state is _State.TEXT:
                self._content(lexeme.raw)
        else:
            self._content(lexeme.raw)

    def _give_up_block(self, raw: str) -> None:
        """The block holds no call: show it as it was written."""
        block, self._block, self._state = self._block, "", _State.TEXT
        self._content(block + raw)

    def _content(self, text: str) -> None:
        """Show text; white space before a block or a lone newline there is wire format."""
        text = self._space + text
        self._space = ""
        if not self._shown and not text.strip():
            self._space = text
            return
        if text.endswith("\n"):
            text, self._space = text[:-1], "\n"
        self._shown = True
        self._events.append(ContentDelta(text))

    # Inside calls

    def _start_call(self, function: str) -> None:
        if self._call is not None:
            self._end_call(complete=True)
        self._state, self._block = _State.CALL, ""
        self._space, self._shown = "", False
        self._call = Call(self._calls, function, self._tools.get(function))
        self._calls += 1

    def _end_call(self, *, complete: bool, then: _State = _State.BLOCK) -> None:
        assert self._call is not None
        self._flush_stray()
        self._call.end(complete=complete)
        self._events += self._call.events
        self._call, self._state = None, then
        self._space, self._shown = "", False

    def _flush_stray(self) -> None:
        """Text between parameters that belongs to none of them is content."""
        stray, self._stray = self._stray, ""
        if stray.strip():
            assert self._call is not None
            self._call.events.append(ContentDelta(stray))

    def _between_parameters(self, call: Call, lexeme: Lexeme) -> None:
        match lexeme:
            case Text():
                self._stray += lexeme.raw
            case Namespace():
                self._stray = self._stray + lexeme.raw if self._stray.strip() else ""
            case Tag(closing=False):
                self._flush_stray()
                call.open(lexeme.name)
            case Tag(name=name):
                if name.strip() in (_INVOKE, _BLOCK):
                    self._close_call(name.strip())
                elif self._stray.strip():
                    value, self._stray = self._stray, ""
                    call.whole(name, value)

    def _close_call(self, name: str) -> None:
        self._end_call(complete=True, then=_State.BLOCK if name == _INVOKE else _State.TEXT)

    def _in_parameter(self, call: Call, tag: Tag) -> None:
        param = call.param
        if isinstance(param, Tree):
            self._in_tree(call, param, tag)
        elif isinstance(param, Raw):
            self._in_raw(call, param, tag)

    def _in_tree(self, call: Call, param: Tree, tag: Tag) -> None:
        if not tag.closing:
            param.push(tag.name, tag.raw)
        elif not param.holds(tag.name) and tag.name.strip() in (_INVOKE, _BLOCK):
            self._close_call(tag.name.strip())
        elif param.pop(tag.name):
            call.close_param()

    def _in_raw(self, call: Call, param: Raw, tag: Tag) -> None:
        """A tag inside a scalar is part of its text, unless it can only mean its end."""
        if not tag.closing:
            sibling = call.schema.declares(call.schema.root, (tag.name,))
            if sibling and tag.name != param.key and not param.quoted:
                call.close_param()
                call.open(tag.name)
            else:
                param.quoted.append(tag.name)
                param.text(tag.raw)
        elif tag.name in param.quoted:
            while param.quoted.pop() != tag.name:
                pass
            param.text(tag.raw)
        elif tag.name != param.key and tag.name.strip() in (_INVOKE, _BLOCK):
            self._close_call(tag.name.strip())
        else:
            call.close_param()


class M3ToolDialect:
    """How MiniMax-M3 writes tool calls."""

    markers = (NAMESPACE,)

    def parser(self, tools: ToolSchemas) -> M3Tools:
        """A parser that types arguments by the tools' schemas."""
        return M3Tools(tools)
