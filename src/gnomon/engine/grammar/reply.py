"""Whole replies as grammars: reasoning, then text, JSON or a block of calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gnomon.engine.grammar.dialects import (
    M3_THINKING,
    MINIMAX_M3,
    Avoid,
    Dialect,
    Thinking,
)
from gnomon.engine.grammar.ebnf import (
    EMPTY,
    Grammar,
    char_class,
    either,
    literal,
    repeated,
    without,
)
from gnomon.engine.grammar.json_text import JsonText
from gnomon.engine.grammar.keywords import SchemaUnsupported
from gnomon.engine.grammar.limits import Limits
from gnomon.engine.grammar.nodes import Anything, Object
from gnomon.engine.grammar.read import SchemaReader
from gnomon.engine.grammar.tagged_text import TaggedText

_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


class Start(Enum):
    """Where the rendered prompt leaves the model."""

    REASONING = "inside reasoning"
    CONTENT = "behind reasoning"
    OPEN = "free to reason or not"
    NOW = "at the first character of the content"


@dataclass(frozen=True)
class Function:
    """A function that may be called.

    Attributes:
        parameters: JSON schema of its arguments.
        strict: whether calls must satisfy it.
        where: how the request names its schema, for messages.
    """

    name: str
    parameters: Any
    strict: bool
    where: str


@dataclass(frozen=True)
class Calls:
    """The block of calls that a reply may or must have.

    Attributes:
        required: the reply is a block.
        single: the block has one call.
        names: of all functions that the prompt offers; these may be more.
    """

    functions: Sequence[Function]
    required: bool
    single: bool
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Json:
    """The JSON text that a reply must be.

    Attributes:
        schema: None for any object.
        where: how the request names it, for messages.
    """

    schema: Any
    where: str


class RequestUnsupported(Exception):
    """A schema of the request cannot be enforced.

    Attributes:
        where: the request field.
        keyword: the keyword at fault.
    """

    def __init__(self, where: str, error: SchemaUnsupported) -> None:
        self.where = where
        self.keyword = error.keyword
        super().__init__(f"{where}: {error}")


def reply_grammar(
    start: Start,
    calls: Calls | None,
    json: Json | None,
    limits: Limits,
    dialect: Dialect = MINIMAX_M3,
    thinking: Thinking = M3_THINKING,
) -> str:
    """The grammar of a reply, as the engine core compiles it.

    Args:
        start: what the prompt has begun.
        calls: the calls offered, None without tools.
        json: what the content must be; None for free text.
        limits: ends for what is left open.
        dialect: how calls are written.
        thinking: how reasoning is written.

    Raises:
        RequestUnsupported: a schema cannot be enforced; names the field and the keyword.
        GrammarTooLarge: the schemas are too large.
    """
    writer = _Reply(limits, dialect, thinking)
    options = []
    if calls is not None:
        options.append(writer.block(calls))
    if json is not None and not (calls is not None and calls.required):
        options.append(writer.json(json, beside_calls=calls is not None))
    if calls is not None and not calls.required and json is None:
        root = f"{writer.text()} ({options[0]})?"
    else:
        root = either(options)
    return writer.source(start, root)


class _Reply:
    def __init__(self, limits: Limits, dialect: Dialect, thinking: Thinking) -> None:
        self._grammar = Grammar()
        self._limits = limits
        self._dialect = dialect
        self._thinking = thinking

    def source(self, start: Start, rest: str) -> str:
        think = self._thinking
        opener, closer = literal(think.opener), literal(think.closer)
        reasoning = f"{self._free(think.closer, *think.ends)} {closer} [\\n]{{0,2}}"
        match start:
            case Start.REASONING:
                root = f"{reasoning} {rest}"
            case Start.CONTENT:
                root = f"[\\n]{{0,2}} {rest}"
            case Start.NOW:
                root = rest
            case Start.OPEN:
                root = f"({opener} {reasoning} | {closer} [\\n]{{0,2}})? {rest}"
        return self._grammar.source(root)

    def text(self) -> str:
        """Free content: anything but a marker of calls."""
        return self._in_channel(self._free(*self._dialect.markers))

    def _in_channel(self, content: str) -> str:
        if self._dialect.channel is None:
            return content
        opener, closer = map(literal, self._dialect.channel)
        return f"({opener})? {content} ({closer})?"

    def _free(self, *markers: str) -> str:
        if self._limits.text is None:
            return self._grammar.rule(without(*markers))
        char = char_class([(ord(markers[0][0]),) * 2], negated=True)
        return f"{char}{{0,{self._limits.text}}}"

    def block(self, calls: Calls) -> str:
        """All calls, with what is around them."""
        dialect = self._dialect
        names = calls.names | {function.name for function in calls.functions}
        invoke = either(self._invoke(f, calls.required, names) for f in calls.functions)
        most = None if self._limits.items is None else self._limits.items - 1
        more = repeated(f"{literal(dialect.between)} {invoke}", 0, most)
        invokes = invoke if calls.single else f"{invoke} {more}"
        newline = "[\\n]? " if calls.required else ""
        opener, closer = literal(dialect.opener), literal(dialect.closer)
        return self._grammar.rule(f"{newline}{opener} {invokes} {closer}")

    def _invoke(self, function: Function, required: bool, names: frozenset[str]) -> str:
        opener = self._dialect.call(function.name, names)
        if function.strict or required:
            arguments = self._arguments(function)
        else:
            arguments = self._loose(function)
        return self._grammar.rule(f"{opener} {arguments} {literal(self._dialect.call_end)}")

    def _arguments(self, function: Function) -> str:
        schema = function.parameters or _NO_PARAMETERS
        try:
            reader = SchemaReader(schema)
            node = reader.read(schema)
            if isinstance(node, Anything):
                node = Object((), None)
            if self._dialect.tags is not None:
                return TaggedText(
                    self._grammar,
                    reader.named,
                    self._limits,
                    self._dialect.tags,
                    self._dialect.avoid,
                ).parameters(node)
            if not isinstance(node, Object):
                raise SchemaUnsupported("", "type", "must be 'object' at the top of parameters")
            return JsonText(self._grammar, reader.named, self._limits).body(node)
        except SchemaUnsupported as error:
            raise RequestUnsupported(function.where, error) from None

    def _loose(self, function: Function) -> str:
        """Arguments that nobody asked to be valid: tags of known names around any text."""
        tags = self._dialect.tags
        if tags is None:
            return JsonText(self._grammar, {}, self._limits).body(Object((), Anything()))
        most = None if self._limits.items is None else 4 * self._limits.items
        names = [name for name in sorted(_names(function.parameters)) if tags.key.fullmatch(name)]
        if not tags.nested:
            text = self._free(*tags.excluded)
            each = either(
                f"{literal(tags.opener(name, 'string'))} {text} {literal(tags.closer(name))}"
                for name in names
            )
            return self._grammar.rule(repeated(each, 0, most) if names else EMPTY)
        text = self._free(*self._dialect.markers)
        tag = self._grammar.rule(
            either(
                literal(spelled)
                for name in sorted({"item", *names})
                for spelled in (tags.opener(name, ""), tags.closer(name))
            )
        )
        return self._grammar.rule(f"{text} {repeated(f'{tag} {text}', 0, most)}")

    def json(self, json: Json, *, beside_calls: bool) -> str:
        """JSON text of a schema, or any JSON object."""
        schema = {"type": "object"} if json.schema is None else json.schema
        marked = beside_calls or self._dialect.channel or self._dialect.avoid is Avoid.BRACKETS
        avoid = self._dialect.avoid if marked else Avoid.NOTHING
        try:
            reader = SchemaReader(schema)
            node = reader.read(schema)
            body = JsonText(self._grammar, reader.named, self._limits, avoid).body(node)
            return self._in_channel(body)
        except SchemaUnsupported as error:
            raise RequestUnsupported(json.where, error) from None


def _names(schema: Any, depth: int = 0) -> set[str]:
    """Member names anywhere in a schema."""
    found: set[str] = set()
    if depth > 64:
        return found
    if isinstance(schema, dict):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            found |= set(properties)
        for value in schema.values():
            found |= _names(value, depth + 1)
    elif isinstance(schema, list):
        for value in schema:
            found |= _names(value, depth + 1)
    return found
