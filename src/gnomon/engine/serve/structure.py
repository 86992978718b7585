"""What a request demands of the form of its answer, and the grammar that enforces it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnomon.engine.grammar.ebnf import GrammarTooLarge
from gnomon.engine.grammar.limits import Limits
from gnomon.engine.grammar.reply import (
    Calls,
    Function,
    Json,
    RequestUnsupported,
    Start,
    reply_grammar,
)
from gnomon.engine.serve.errors import ApiError, bad_request, missing, unsupported
from gnomon.engine.serve.parsers.m3_reasoning import CLOSE, OPEN, M3ReasoningDialect
from gnomon.engine.serve.parsers.m3_tools import M3ToolDialect
from gnomon.engine.serve.protocol.chat import Tool


@dataclass(frozen=True)
class Structure:
    """The form of an answer.

    Attributes:
        calls: the calls it may or must have, if their form is demanded.
        json: the JSON it must be.
    """

    calls: Calls | None
    json: Json | None

    @property
    def free(self) -> bool:
        """Whether nothing is demanded."""
        return self.calls is None and self.json is None


@dataclass(frozen=True)
class Choice:
    """``tool_choice``: auto, none, required, or one function by its name."""

    mode: str = "auto"
    name: str | None = None


def read_choice(value: str | Mapping[str, Any] | None, tools: Sequence[Tool] | None) -> Choice:
    """Read ``tool_choice``, in the chat API's spelling or that of Responses.

    Raises:
        ApiError: it is none of them, or the tools it needs are not there.
    """
    if value is None or value in ("auto", "none"):
        return Choice(str(value or "auto"))
    names = [tool.function.name for tool in tools or ()]
    if value == "required":
        if not names:
            raise bad_request("tool_choice is 'required', but 'tools' has none.", "tool_choice")
        return Choice("required")
    if isinstance(value, Mapping) and value.get("type") == "function":
        function = value.get("function")
        name = function.get("name") if isinstance(function, Mapping) else value.get("name")
        if not isinstance(name, str):
            raise bad_request("tool_choice names no function.", "tool_choice")
        if name not in names:
            raise bad_request(
                f"tool_choice names the function {name!r}, which 'tools' does not have.",
                "tool_choice",
            )
        return Choice("required", name)
    raise unsupported(
        "tool_choice",
        f"tool_choice {value!r} is not supported by this server; use 'auto', 'none', 'required' "
        "or a function.",
    )


def structure(
    tools: Sequence[Tool] | None,
    choice: Choice,
    parallel: bool | None,
    json: Json | None,
    *,
    flat: bool = False,
) -> Structure:
    """What a request demands.

    Args:
        tools: of the request, checked.
        choice: its ``tool_choice``.
        parallel: its ``parallel_tool_calls``.
        json: what its answer must be.
        flat: the request spells tools without a nested ``function`` (for the names in errors).
    """
    offered = [] if choice.mode == "none" else list(enumerate(tools or ()))
    functions = [
        Function(
            tool.function.name,
            tool.function.parameters,
            bool(tool.function.strict),
            f"tools[{at}]{'' if flat else '.function'}.parameters",
        )
        for at, tool in offered
        if choice.name in (None, tool.function.name)
    ]
    required = choice.mode == "required"
    single = choice.name is not None or parallel is False
    demanded = required or single or json is not None or any(f.strict for f in functions)
    calls = Calls(functions, required, single) if functions and demanded else None
    return Structure(calls, json)


def chat_format(value: Mapping[str, Any] | None) -> Json | None:
    """Read ``response_format``.

    Raises:
        ApiError: it is of an unknown type, or has no schema.
    """
    if value is None:
        return None
    if value.get("type") != "json_schema":
        return _format(value, "response_format")
    named = value.get("json_schema")
    if not isinstance(named, Mapping):
        where = "response_format.json_schema"
        raise bad_request(f"{where} must be an object with a name and a schema.", where)
    return _format({**named, "type": "json_schema"}, "response_format", ".json_schema")


def responses_format(value: Mapping[str, Any] | None) -> Json | None:
    """Read the Responses API's ``text``.

    Raises:
        ApiError: it has unknown members, or a format of an unknown type.
    """
    if value is None:
        return None
    for name in value:
        if name != "format" and not (name == "verbosity" and value[name] in (None, "medium")):
            raise unsupported(f"text.{name}", f"text.{name} is not supported by this server.")
    found = value.get("format")
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise bad_request("text.format must be an object.", "text.format")
    return _format(found, "text.format")


def _format(value: Mapping[str, Any], where: str, nested: str = "") -> Json | None:
    match value.get("type"):
        case "text":
            return None
        case "json_object":
            return Json(None, where)
        case "json_schema":
            schema = value.get("schema")
            at = f"{where}{nested}"
            if not isinstance(value.get("name"), str) or not value["name"]:
                raise missing(f"{at}.name", f"{at}.name is missing; give the schema a name.")
            if not isinstance(schema, Mapping):
                raise bad_request(f"{at}.schema must be a JSON schema object.", f"{at}.schema")
            return Json(schema, f"{at}.schema")
        case kind:
            raise unsupported(
                f"{where}.type",
                f"{where}.type {kind!r} is not supported; use 'text', 'json_object' or "
                "'json_schema'.",
            )


def grammar_of(
    wanted: Structure, tail: str, reasoning: object | None, tools: object | None, limits: Limits
) -> str | None:
    """The grammar that enforces a structure; None if nothing is demanded.

    Args:
        wanted: the structure.
        tail: end of the rendered prompt, which tells how the answer starts.
        reasoning: the server's reasoning dialect.
        tools: its dialect of calls.
        limits: ends for what is left open.

    Raises:
        ApiError: a schema has a keyword that cannot be enforced, or the dialect has no grammar.
    """
    if wanted.free:
        return None
    if not isinstance(reasoning, M3ReasoningDialect | None) or (
        wanted.calls is not None and not isinstance(tools, M3ToolDialect)
    ):
        raise unsupported(
            "tool_choice" if wanted.calls is not None else "response_format",
            "Structured output and enforced tool calls are supported for the minimax_m3 parsers "
            "only.",
        )
    end = tail.rstrip()
    if reasoning is None or end.endswith(CLOSE):
        start = Start.CONTENT
    else:
        start = Start.REASONING if end.endswith(OPEN) else Start.OPEN
    try:
        return reply_grammar(start, wanted.calls, wanted.json, limits)
    except RequestUnsupported as error:
        raise ApiError(
            400,
            f"The schema in {error} (strict schemas are enforced, so nothing in them is ignored).",
            param=error.where,
            code="unsupported_schema",
        ) from None
    except GrammarTooLarge as error:
        raise bad_request(f"{error}; send smaller schemas.".capitalize(), "tools") from None
