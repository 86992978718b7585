"""What a request demands of the form of its answer, and the grammar that enforces it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnomon.engine.grammar.dialects import DIALECTS, HERMES, M3_THINKING, Thinking
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
from gnomon.engine.serve.parsers.base import ReasoningDialect
from gnomon.engine.serve.parsers.registry import NONE
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
    """``tool_choice``: auto, none or required, and which functions may be called.

    Attributes:
        name: the one function that must be called.
        allowed: the functions that may be called; None is all of them.
    """

    mode: str = "auto"
    name: str | None = None
    allowed: frozenset[str] | None = None


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
    if isinstance(value, Mapping) and value.get("type") == "allowed_tools":
        return _allowed(value, names)
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
        f"tool_choice {value!r} is not supported by this server; use 'auto', 'none', 'required', "
        "a function or 'allowed_tools'.",
    )


def _allowed(value: Mapping[str, Any], names: Sequence[str]) -> Choice:
    """Read ``allowed_tools``, nested as in the chat API or flat as in Responses."""
    nested = value.get("allowed_tools")
    where = "tool_choice" if nested is None else "tool_choice.allowed_tools"
    given = value if nested is None else nested
    mode = given.get("mode") if isinstance(given, Mapping) else None
    if mode not in ("auto", "required"):
        raise bad_request(f"{where}.mode must be 'auto' or 'required'.", f"{where}.mode")
    tools = given.get("tools")
    if not isinstance(tools, list) or not tools:
        raise bad_request(f"{where}.tools must list functions.", f"{where}.tools")
    found = set()
    for at, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or name not in names:
            raise bad_request(
                f"{where}.tools[{at}] names the function {name!r}, which 'tools' does not have.",
                f"{where}.tools[{at}]",
            )
        found.add(name)
    return Choice(mode, allowed=frozenset(found))


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
        and (choice.allowed is None or tool.function.name in choice.allowed)
    ]
    required = choice.mode == "required"
    single = choice.name is not None or parallel is False
    demanded = required or single or json is not None or choice.allowed is not None
    demanded = demanded or any(function.strict for function in functions)
    names = frozenset(tool.function.name for _, tool in offered)
    calls = Calls(functions, required, single, names) if functions and demanded else None
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


def messages_format(
    config: Mapping[str, Any] | None, older: Mapping[str, Any] | None
) -> Json | None:
    """Read the Messages API's ``output_config`` and ``output_format``, an older spelling of it.

    Raises:
        ApiError: they have unknown members, or are not of the type json_schema.
    """
    where, found = "output_format", older
    if config is not None:
        for name in config:
            if name != "format" and config[name] is not None:
                raise unsupported(
                    f"output_config.{name}",
                    f"output_config.{name} is not supported by this server.",
                )
        if config.get("format") is not None:
            if older is not None:
                raise bad_request(
                    "output_format is an older spelling of output_config.format; send one.", where
                )
            where, found = "output_config.format", config["format"]
    if found is None:
        return None
    if not isinstance(found, Mapping) or found.get("type") != "json_schema":
        raise bad_request(f"{where} must be an object of type 'json_schema'.", where)
    schema = found.get("schema")
    if not isinstance(schema, Mapping):
        raise bad_request(f"{where}.schema must be a JSON schema object.", f"{where}.schema")
    return Json(schema, f"{where}.schema")


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
    wanted: Structure,
    tail: str,
    reasoning: ReasoningDialect | None,
    tool_call_parser: str,
    limits: Limits,
) -> str | None:
    """The grammar that enforces a structure; None if nothing is demanded.

    Args:
        wanted: the structure.
        tail: end of the rendered prompt, which tells how the answer starts; empty if it was not
            rendered, and the answer is all content.
        reasoning: the server's reasoning dialect; None if the answer starts with its content.
        tool_call_parser: name of its dialect of calls.
        limits: ends for what is left open.

    Raises:
        ApiError: a schema has a keyword that cannot be enforced, or calls are not parsed.
    """
    if wanted.free:
        return None
    if wanted.calls is not None and tool_call_parser == NONE:
        raise unsupported(
            "tool_choice", "This server does not parse tool calls, so it cannot enforce any."
        )
    dialect, thinking = DIALECTS.get(tool_call_parser, HERMES), M3_THINKING
    start = Start.CONTENT if tail else Start.NOW
    if reasoning is None:
        dialect = HERMES if wanted.calls is None else dialect  # nothing would be read as a marker
    else:
        thinking = Thinking(reasoning.opener, reasoning.closer, reasoning.ends)
        end = tail.rstrip()
        if not end.endswith(thinking.closer):
            start = Start.REASONING if end.endswith(thinking.opener) else Start.OPEN
    try:
        return reply_grammar(start, wanted.calls, wanted.json, limits, dialect, thinking)
    except RequestUnsupported as error:
        raise ApiError(
            400,
            f"The schema in {error} (strict schemas are enforced, so nothing in them is ignored).",
            param=error.where,
            code="unsupported_schema",
        ) from None
    except GrammarTooLarge as error:
        where = "tools" if wanted.json is None else wanted.json.where
        raise bad_request(f"{error}; send smaller schemas.".capitalize(), where) from None
