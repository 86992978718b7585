"""Tool calls as tags: a block of invokes, whose parameters are tagged values.

MiniMax M2 and M3 and Kimi K3 write calls so; their lexers turn each spelling into the same tags.
The grammar is block ( invoke ( parameter value /parameter )* /invoke )* /block. Models deviate
from it; what is accepted besides:

* a missing opening tag of a parameter (M3: ``NS value NS</key>``, vLLM #51073);
* an invoke outside a block, where its marker cannot be mistaken for text (M3, K3);
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
from gnomon.engine.serve.parsers.call import Call, Raw, Tree
from gnomon.engine.serve.parsers.prose import Prose
from gnomon.engine.serve.parsers.tags import (
    BLOCK,
    INVOKE,
    Lexeme,
    Lexer,
    Namespace,
    Tag,
    Text,
    Wrapper,
)


class _State(Enum):
    TEXT = "outside blocks"
    OPENED = "in a block that has no call yet"
    BLOCK = "in a block, between calls"
    CALL = "in a call"


class TaggedTools:
    """Incremental parser over the content part of a reply.

    Args:
        tools: the functions offered; calls of others are passed on, all arguments as strings.
        lexer: fresh, of the dialect.
        nested: values may hold elements, and closers name what they close.
        bare: an invoke counts outside a block too.
    """

    def __init__(
        self, tools: ToolSchemas, lexer: Lexer, *, nested: bool = True, bare: bool = True
    ) -> None:
        self._tools = tools
        self._lexer = lexer
        self._nested = nested
        self._bare = bare
        self._state = _State.TEXT
        self._call: Call | None = None
        self._calls = 0
        self._events: list[Event] = []
        self._block = ""  # what was read of a block that may turn out to hold no call
        self._prose = Prose()
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
        self._events += self._prose.finish()
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
            param.quoted.append(INVOKE)
            param.text(lexeme.raw)
        elif isinstance(lexeme, Tag) and lexeme.function and self._may_call():
            self._start_call(lexeme.function)
        elif self._call is None:
            self._outside(lexeme)
        elif param is None:
            self._between_parameters(self._call, lexeme)
        elif isinstance(lexeme, Tag):
            self._in_parameter(self._call, lexeme)
        else:
            param.text(lexeme.raw)

    def _may_call(self) -> bool:
        return self._bare or self._state is not _State.TEXT

    # Outside calls

    def _outside(self, lexeme: Lexeme) -> None:
        tag = lexeme.name.strip() if isinstance(lexeme, Tag) else None
        if isinstance(lexeme, Wrapper):
            return
        if self._state is _State.OPENED:
            if isinstance(lexeme, Text) and not lexeme.raw.strip():
                self._block += lexeme.raw
            elif tag == BLOCK and isinstance(lexeme, Tag) and not lexeme.closing:
                self._content(self._block)
                self._block = lexeme.raw
            else:
                self._give_up_block(lexeme.raw)
        elif tag == BLOCK and isinstance(lexeme, Tag):
            if self._state is _State.TEXT and not lexeme.closing:
                self._state, self._block = _State.OPENED, lexeme.raw
            elif self._state is _State.BLOCK and lexeme.closing:
                self._state = _State.TEXT
                self._prose.interrupt(call=False)
            elif self._state is _State.TEXT:
                self._content(lexeme.raw)
        else:
            self._content(lexeme.raw)

    def _give_up_block(self, raw: str) -> None:
        """The block holds no call: show it as it was written."""
        block, self._block, self._state = self._block, "", _State.TEXT
        self._content(block + raw)

    def _content(self, text: str) -> None:
        self._events += self._prose.text(text)

    # Inside calls

    def _start_call(self, function: str) -> None:
        if self._call is not None:
            self._end_call(complete=True)
        self._state, self._block = _State.CALL, ""
        self._prose.interrupt(call=True)
        self._call = Call(self._calls, function, self._tools.get(function))
        self._calls += 1

    def _end_call(self, *, complete: bool, then: _State = _State.BLOCK) -> None:
        assert self._call is not None
        self._flush_stray()
        self._call.end(complete=complete)
        self._events += self._call.events
        self._call, self._state = None, then
        self._prose.interrupt(call=True)

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
            case Wrapper() | Tag(closing=False, parameter=False):
                pass
            case Tag(closing=False):
                self._flush_stray()
                self._open(call, lexeme)
            case Tag(name=name):
                if name.strip() in (INVOKE, BLOCK):
                    self._close_call(name.strip())
                elif name and self._stray.strip():
                    value, self._stray = self._stray, ""
                    call.whole(name, value)

    def _open(self, call: Call, tag: Tag) -> None:
        call.open(tag.name, nested=self._nested, hint=tag.hint)

    def _close_call(self, name: str) -> None:
        self._end_call(complete=True, then=_State.BLOCK if name == INVOKE else _State.TEXT)

    def _in_parameter(self, call: Call, tag: Tag) -> None:
        param = call.param
        if isinstance(param, Tree):
            self._in_tree(call, param, tag)
        elif isinstance(param, Raw):
            self._in_raw(call, param, tag)

    def _in_tree(self, call: Call, param: Tree, tag: Tag) -> None:
        if not tag.closing:
            param.push(tag.name, tag.raw)
        elif not param.holds(tag.name) and tag.name.strip() in (INVOKE, BLOCK):
            self._close_call(tag.name.strip())
        elif param.pop(tag.name):
            call.close_param()

    def _in_raw(self, call: Call, param: Raw, tag: Tag) -> None:
        """A tag inside a scalar is part of its text, unless it can only mean its end."""
        if not tag.closing:
            known = tag.parameter and call.schema.declares(call.schema.root, (tag.name,))
            if known and tag.name != param.key and not param.quoted:
                call.close_param()
                self._open(call, tag)
            else:
                if self._nested:  # its closer has a name, by which it is told from the value's
                    param.quoted.append(tag.name)
                param.text(tag.raw)
        elif tag.name in param.quoted:
            while param.quoted.pop() != tag.name:
                pass
            param.text(tag.raw)
        elif not self._is_closer(param, tag) and tag.name.strip() in (INVOKE, BLOCK):
            self._close_call(tag.name.strip())
        else:
            call.close_param()

    def _is_closer(self, param: Raw, tag: Tag) -> bool:
        return self._nested and tag.name == param.key
