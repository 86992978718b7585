"""From request messages and tools to what the chat template takes, checking as it goes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gnomon.engine.serve.errors import ApiError, bad_request, missing, unsupported
from gnomon.engine.serve.parsers.base import ReasoningDialect, ToolSchemas
from gnomon.engine.serve.protocol.chat import Message, Tool, ToolCall
from gnomon.engine.serve.protocol.schema import schema_problem

ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
# Beside the text: what servers return with a part, and Anthropic's mark for prefixes to cache.
_PART_MEMBERS = ("type", "text", "refusal", "id", "annotations", "logprobs", "cache_control")
_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.:/\-]{1,128}")
_THINKING = "thinking_mode"
_MAX_ARGUMENT_DEPTH = 64  # as deep as schemas; templates follow arguments by recursion


def template_messages(
    messages: Sequence[Message], reasoning: ReasoningDialect | None
) -> list[dict[str, Any]]:
    """Messages in OpenAI's chat shape, as chat templates take them.

    Content is text, tool-call arguments are mappings, and reasoning is ``reasoning_content``,
    whichever of its spellings the history used.

    Raises:
        ApiError: a message is wrong; names its index.
    """
    if not messages:
        raise bad_request("'messages' is empty; send at least one message.", "messages")
    return [_message(m, f"messages[{at}]", reasoning) for at, m in enumerate(messages)]


def _message(message: Message, where: str, dialect: ReasoningDialect | None) -> dict[str, Any]:
    if message.role not in ROLES:
        raise bad_request(
            f"{where}.role is {message.role!r}; it must be one of {', '.join(ROLES)}.",
            f"{where}.role",
        )
    _require_own_members(message, where)
    content = text_content(message.content, f"{where}.content")
    found: dict[str, Any] = {"role": message.role, "content": content}
    if message.name is not None:
        found["name"] = message.name
    if message.role == "assistant":
        _assistant(found, message, where, dialect)
    elif content is None:
        raise missing(f"{where}.content", f"{where}.content is missing.")
    elif message.role == "tool":
        if not message.tool_call_id:
            raise missing(
                f"{where}.tool_call_id",
                f"{where}.tool_call_id is missing: a tool message answers a call.",
            )
        found["tool_call_id"] = message.tool_call_id
    return found


def _require_own_members(message: Message, where: str) -> None:
    for member, role in _OWNERS.items():
        if getattr(message, member) and message.role != role:
            raise bad_request(
                f"{where}.{member} is set, but only a message of the role {role!r} has it.",
                f"{where}.{member}",
            )


_OWNERS = {
    "tool_calls": "assistant",
    "reasoning_content": "assistant",
    "reasoning": "assistant",
    "tool_call_id": "tool",
}
"""Members of a message that only one role has."""


def _assistant(
    found: dict[str, Any], message: Message, where: str, dialect: ReasoningDialect | None
) -> None:
    content = found["content"]
    if content is None and not message.tool_calls and not _reasoning(message, where):
        raise missing(f"{where}.content", f"{where} has neither content nor tool_calls.")
    reasoning = _reasoning(message, where)
    if content and dialect is not None:
        inside, found["content"] = dialect.split(content)
        reasoning = _once(reasoning, inside, f"{where}.content")
    if reasoning:
        found["reasoning_content"] = reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{at}]")
            for at, call in enumerate(message.tool_calls)
        ]


def _reasoning(message: Message, where: str) -> str | None:
    """Reasoning in its own field, whichever of its spellings the history used."""
    return _once(message.reasoning_content or None, message.reasoning or None, f"{where}.reasoning")


def _once(one: str | None, other: str | None, where: str) -> str | None:
    """Reasoning that may be spelled twice, for the template to write it once.

    Raises:
        ApiError: the two are not the same.
    """
    if one is not None and other is not None and one.strip() != other.strip():
        raise bad_request(
            f"{where} and reasoning_content hold different reasoning; send it once.", where
        )
    return other if one is None else one


def _tool_call(call: ToolCall, where: str) -> dict[str, Any]:
    if call.type != "function":
        raise bad_request(f"{where}.type must be 'function'.", f"{where}.type")
    function = {
        "name": call.function.name,
        "arguments": call_arguments(call.function.arguments, f"{where}.function.arguments"),
    }
    return {"id": call.id, "type": "function", "function": function}


def call_arguments(arguments: str | dict[str, Any] | None, where: str) -> dict[str, Any]:
    """Arguments of a call in the history, as a mapping; nothing means none.

    Raises:
        ApiError: they are not a JSON object.
    """
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    parsed: Any = arguments
    try:
        if isinstance(arguments, str):
            parsed = json.loads(arguments, parse_constant=_no_constant)
            # No text: half a surrogate pair. No number: 1e999, which Python reads as infinity.
            json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()
        deep = _is_deep(parsed)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"{where} is not valid JSON: {error}.", where) from None
    if not isinstance(parsed, dict):
        raise bad_request(f"{where} must be a JSON object, as text.", where)
    if deep:
        raise bad_request(f"{where} is nested deeper than {_MAX_ARGUMENT_DEPTH} levels.", where)
    return parsed


def _is_deep(value: Any) -> bool:
    """Whether JSON is nested deeper than templates are asked to follow, level by level."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_MAX_ARGUMENT_DEPTH):
        lists = (list(v.values()) if isinstance(v, dict) else v for v in level)
        level = [v for inner in lists for v in inner if isinstance(v, dict | list)]
        if not level:
            return False
    return True


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def text_content(content: str | Sequence[Mapping[str, Any]] | None, where: str) -> str | None:
    """Content as one text; parts are joined without anything between them.

    Raises:
        ApiError: a part is not text.
    """
    if content is None or isinstance(content, str):
        return content
    return "".join(_part(part, f"{where}[{at}]") for at, part in enumerate(content))


def _part(part: Mapping[str, Any], where: str) -> str:
    kind = part.get("type")
    if kind not in _TEXT_PARTS:
        raise ApiError(
            400,
            f"{where} has type {kind!r}; this server takes text only.",
            param=where,
            code="unsupported_content_part",
        )
    for name, value in part.items():
        if name not in _PART_MEMBERS and value is not None:
            raise bad_request(f"{where}.{name} is not known; a part has a text.", f"{where}.{name}")
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise bad_request(f"{where}.text must be a string.", f"{where}.text")
    return text


def offered_tools(
    tools: Sequence[Tool] | None, choice: str | Mapping[str, Any] | None, flat: bool = False
) -> list[dict[str, Any]]:
    """Tools in OpenAI's chat shape; none if the choice is "none".

    Args:
        tools: of the request.
        choice: ``tool_choice``.
        flat: the request spelled them without a nested ``function`` (for the names in errors).

    Raises:
        ApiError: a tool is wrong.
    """
    found = [_tool(tool, at, flat) for at, tool in enumerate(tools or ())]
    names = [tool["function"]["name"] for tool in found]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise bad_request(f"tools has two functions named {twice!r}.", "tools")
    return [] if choice == "none" else found


def _tool(tool: Tool, at: int, flat: bool) -> dict[str, Any]:
    where = f"tools[{at}]"
    if tool.type != "function":
        raise unsupported(
            f"{where}.type", f"{where}.type is {tool.type!r}; only 'function' tools are supported."
        )
    function = tool.function
    where += "" if flat else ".function"
    if not _FUNCTION_NAME.fullmatch(function.name):
        raise bad_request(
            f"{where}.name is {function.name!r}; use 1 to 128 letters, digits, '_', '-', '.', "
            "':' or '/'.",
            f"{where}.name",
        )
    found: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        found["description"] = function.description
    if function.parameters is not None:
        problem = schema_problem(function.parameters)
        if problem is not None:
            raise ApiError(
                400,
                f"Invalid schema for function {function.name!r}: {where}.parameters {problem}.",
                param=f"{where}.parameters",
                code="invalid_function_parameters",
            )
        found["parameters"] = function.parameters
    return {"type": "function", "function": found}


def tool_schemas(tools: Sequence[Mapping[str, Any]]) -> ToolSchemas:
    """Function name to parameter schema."""
    return {t["function"]["name"]: t["function"].get("parameters") or {} for t in tools}


def template_kwargs(
    kwargs: Mapping[str, Any] | None, effort: str | None, effort_param: str
) -> dict[str, Any]:
    """Extra template variables: the request's own, and the thinking mode that an effort asks for.

    Effort "none" switches thinking off, any other level on; an explicit ``thinking_mode`` wins.
    """
    if effort is not None and effort not in _EFFORTS:
        raise bad_request(
            f"{effort_param} is {effort!r}; it must be one of {', '.join(_EFFORTS)}.", effort_param
        )
    mode = {} if effort is None else {_THINKING: "disabled" if effort == "none" else "enabled"}
    return {**mode, **(kwargs or {})}


_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
