"""Whole replies as grammars: reasoning, then text, JSON or a block of calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gnomon.engine.grammar.ebnf import (
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
from gnomon.engine.grammar.m3_text import NAMESPACE, M3Text
from gnomon.engine.grammar.nodes import Anything, Object
from gnomon.engine.grammar.read import SchemaReader

_THINK, _END_THINK = "<mm:think>", "</mm:think>"


class Start(Enum):
    """Where the rendered prompt leaves the model."""

    REASONING = "inside reasoning"
    CONTENT = "behind reasoning"
    OPEN = "free to reason or not"


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
    """

    functions: Sequence[Function]
    required: bool
    single: bool


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


def reply_grammar(start: Start, calls: Calls | None, json: Json | None, limits: Limits) -> str:
    """The grammar of a reply, as the engine core compiles it.

    Args:
        start: what the prompt has begun.
        calls: the calls offered, None without tools.
        json: what the content must be; None for free text.
        limits: ends for what is left open.

    Raises:
        RequestUnsupported: a schema cannot be enforced; names the field and the keyword.
        GrammarTooLarge: the schemas are too large.
    """
    writer = _Reply(limits)
    options = []
    if calls is not None:
        options.append(writer.block(calls))
    if json is not None and not (calls is not None and calls.required):
        options.append(writer.json(json))
    if calls is not None and not calls.required and json is None:
        root = f"{writer.text()} ({options[0]})?"
    else:
        root = either(options)
    return writer.source(start, root)


class _Reply:
    def __init__(self, limits: Limits) -> None:
        self._grammar = Grammar()
        self._limits = limits

    def source(self, start: Start, rest: str) -> str:
        reasoning = f"{self._free(_END_THINK, 0x3C)} {literal(_END_THINK)} [\\n]{{0,2}}"
        match start:
            case Start.REASONING:
                root = f"{reasoning} {rest}"
            case Start.CONTENT:
                root = f"[\\n]{{0,2}} {rest}"
            case Start.OPEN:
                opened = f"{literal(_THINK)} {reasoning}"
                root = f"({opened} | {literal(_END_THINK)} [\\n]{{0,2}})? {rest}"
        return self._grammar.source(root)

    def text(self) -> str:
        """Free content: anything but a tag of a call."""
        return self._free(NAMESPACE, 0x5D)

    def _free(self, marker: str, first: int) -> str:
        if self._limits.text is None:
            return self._grammar.rule(without(marker))
        char = char_class([(first, first)], negated=True)
        return f"{char}{{0,{self._limits.text}}}"

    def block(self, calls: Calls) -> str:
        """``NS<tool_call>``, calls, ``NS</tool_call>``."""
        invoke = either(self._invoke(function, calls.required) for function in calls.functions)
        invokes = invoke if calls.single else repeated(invoke, 1, self._limits.items)
        opener, closer = literal(f"{NAMESPACE}<tool_call>\n"), literal(f"{NAMESPACE}</tool_call>")
        newline = "[\\n]? " if calls.required else ""
        return self._grammar.rule(f"{newline}{opener} {invokes} {closer}")

    def _invoke(self, function: Function, required: bool) -> str:
        opener = literal(f'{NAMESPACE}<invoke name="{function.name}">')
        closer = literal(f"{NAMESPACE}</invoke>\n")
        if function.strict or required:
            arguments = self._arguments(function)
        else:
            arguments = self._loose(function)
        return self._grammar.rule(f"{opener} {arguments} {closer}")

    def _arguments(self, function: Function) -> str:
        schema = function.parameters or {"type": "object", "properties": {}}
        try:
            reader = SchemaReader(schema)
            node = reader.read(schema)
            if isinstance(node, Anything):
                node = Object((), None)
            return M3Text(self._grammar, reader.named, self._limits).parameters(node)
        except SchemaUnsupported as error:
            raise RequestUnsupported(function.where, error) from None

    def _loose(self, function: Function) -> str:
        """Arguments that nobody asked to be valid: tags of known names around any text."""
        names = sorted({"item", *_names(function.parameters)})
        text = self._grammar.rule(without(NAMESPACE))
        tag = self._grammar.rule(
            either(literal(f"{NAMESPACE}<{slash}{name}>") for name in names for slash in ("", "/"))
        )
        return self._grammar.rule(f"{text} ({tag} {text})*")

    def json(self, json: Json) -> str:
        """JSON text of a schema, or any JSON object."""
        schema = {"type": "object"} if json.schema is None else json.schema
        try:
            reader = SchemaReader(schema)
            node = reader.read(schema)
            return JsonText(self._grammar, reader.named, self._limits).body(node)
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
            found |= {name for name in properties if ">" not in name and "\n" not in name}
        for value in schema.values():
            found |= _names(value, depth + 1)
    elif isinstance(schema, list):
        for value in schema:
            found |= _names(value, depth + 1)
    return found
