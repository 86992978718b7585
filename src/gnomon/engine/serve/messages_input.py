"""From an Anthropic conversation to chat messages and tools.

A turn of the user may hold tool results and text: each result becomes a tool message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gnomon.engine.serve.errors import ApiError, bad_request, unsupported
from gnomon.engine.serve.history import CallLedger
from gnomon.engine.serve.protocol.chat import Function, FunctionCall, Message, Tool, ToolCall
from gnomon.engine.serve.protocol.messages import (
    CountTokensRequest,
    InputTool,
    Thinking,
    ToolChoice,
    Turn,
)

_THINKING = ("enabled", "disabled", "adaptive")


def chat_messages(body: CountTokensRequest) -> list[Message]:
    """The conversation as chat messages.

    Raises:
        ApiError: a turn or a block is wrong; names it.
    """
    found: list[Message] = []
    if body.system:
        found.append(Message(role="system", content=_text(body.system, "system")))
    if not body.messages:
        raise bad_request("'messages' is empty; send at least one message.", "messages")
    ledger = CallLedger()
    for at, turn in enumerate(body.messages):
        where = f"messages[{at}]"
        if turn.role == "user":
            found += _user(turn, where, ledger)
        elif turn.role == "assistant":
            ledger.speak(where, assistant=True)
            found.append(_assistant(turn, where, ledger))
        else:
            raise bad_request(
                f"{where}.role is {turn.role!r}; it must be user or assistant.", f"{where}.role"
            )
    if body.messages[-1].role == "assistant":
        raise unsupported(
            f"messages[{len(body.messages) - 1}]",
            "The last message is the assistant's: continuing a prefilled answer is not supported.",
        )
    ledger.speak("", assistant=False)
    return found


def _blocks(turn: Turn, where: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Places and blocks of a turn."""
    if isinstance(turn.content, str):
        return [(f"{where}.content", {"type": "text", "text": turn.content})]
    return [(f"{where}.content[{at}]", block) for at, block in enumerate(turn.content)]


def _user(turn: Turn, where: str, ledger: CallLedger) -> list[Message]:
    found: list[Message] = []
    said = ""
    for place, block in _blocks(turn, where):
        if block.get("type") == "tool_result":
            call_id = _string(block, "tool_use_id", place)
            ledger.result(call_id, place, "tool_use_id")
            content = block.get("content")
            text = "" if content is None else _text(content, f"{place}.content")
            found.append(Message(role="tool", content=text, tool_call_id=call_id))
        else:
            said += _block_text(block, place)
    if said or not found:
        ledger.speak(where, assistant=False)
        found.append(Message(role="user", content=said))
    return found


def _assistant(turn: Turn, where: str, ledger: CallLedger) -> Message:
    said = thought = ""
    calls: list[ToolCall] = []
    for place, block in _blocks(turn, where):
        match block.get("type"):
            case "thinking":
                thought += _string(block, "thinking", place)
            case "tool_use":
                call = _call(block, place)
                ledger.call(call.id, place)
                calls.append(call)
            case _:
                said += _block_text(block, place)
    return Message(
        role="assistant",
        content=said if said or not calls else None,
        reasoning_content=thought or None,
        tool_calls=calls or None,
    )


def _call(block: Mapping[str, Any], place: str) -> ToolCall:
    given = block.get("input")
    if not isinstance(given, dict):
        raise bad_request(f"{place}.input must be an object.", f"{place}.input")
    function = FunctionCall(name=_string(block, "name", place), arguments=given)
    return ToolCall(id=_string(block, "id", place), function=function)


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise bad_request(f"{where} must be a string or a list of blocks.", where)
    return "".join(_block_text(part, f"{where}[{at}]") for at, part in enumerate(content))


def _block_text(block: Mapping[str, Any], place: str) -> str:
    if block.get("type") != "text":
        raise ApiError(
            400,
            f"{place} has type {block.get('type')!r}, which this server does not take here.",
            param=place,
            code="unsupported_content_part",
        )
    text = block.get("text")
    if not isinstance(text, str):
        raise bad_request(f"{place}.text must be a string.", f"{place}.text")
    return text


def _string(block: Mapping[str, Any], name: str, place: str) -> str:
    value = block.get(name)
    if not isinstance(value, str) or not value:
        raise bad_request(f"{place}.{name} must be a non-empty string.", f"{place}.{name}")
    return value


def chat_tools(tools: Sequence[InputTool] | None) -> list[Tool] | None:
    """Tools in the chat API's shape.

    Raises:
        ApiError: a tool is one that the vendor runs.
    """
    if tools is None:
        return None
    found = []
    for at, tool in enumerate(tools):
        if tool.type not in (None, "custom"):
            raise unsupported(
                f"tools[{at}].type",
                f"tools[{at}].type is {tool.type!r}; only 'custom' tools are supported.",
            )
        function = Function(
            name=tool.name,
            description=tool.description,
            parameters=tool.input_schema,
            strict=tool.strict,
        )
        found.append(Tool(type="function", function=function))
    return found


def chat_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    """``tool_choice`` as the chat API spells it.

    Raises:
        ApiError: it is of an unknown type.
    """
    if choice is None:
        return None
    names = {"auto": "auto", "none": "none", "any": "required"}
    if choice.type in names:
        return names[choice.type]
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    raise bad_request(
        f"tool_choice.type is {choice.type!r}; it must be auto, any, tool or none.",
        "tool_choice.type",
    )


def thinking_kwargs(thinking: Thinking | None) -> dict[str, Any]:
    """Template variables for the thinking mode; none leave the template's default.

    Raises:
        ApiError: the mode is unknown.
    """
    if thinking is None:
        return {}
    if thinking.type not in _THINKING:
        raise bad_request(
            f"thinking.type is {thinking.type!r}; it must be one of {', '.join(_THINKING)}.",
            "thinking.type",
        )
    return {"thinking_mode": thinking.type}
