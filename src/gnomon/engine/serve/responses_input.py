"""From the items of a Responses request to chat messages.

Items are flat where messages nest: reasoning, text and calls of one assistant turn are items in a
row, and become one message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gnomon.engine.serve.conversation import ROLES, call_arguments, text_content
from gnomon.engine.serve.errors import bad_request, unsupported
from gnomon.engine.serve.history import CallLedger
from gnomon.engine.serve.protocol.chat import Function as ChatFunction
from gnomon.engine.serve.protocol.chat import FunctionCall, Message, Tool, ToolCall
from gnomon.engine.serve.protocol.responses import FlatTool
from gnomon.engine.serve.seal import NotOurs


def messages_of(
    instructions: str | None,
    given: str | Sequence[Mapping[str, Any]],
    earlier: Sequence[Mapping[str, Any]] = (),
    unseal: Callable[[str], str] | None = None,
) -> list[Message]:
    """The conversation as chat messages.

    Args:
        instructions: of this request; those of earlier ones do not count.
        given: the request's input.
        earlier: items of the conversation that it continues.
        unseal: reads ``encrypted_content``, or raises :class:`NotOurs`.

    Raises:
        ApiError: an item is wrong or of a kind that is not served; names its index.
    """
    found: list[Message] = []
    if instructions:
        found.append(Message(role="system", content=instructions))
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not given:
        raise bad_request("'input' is empty; send at least one item.", "input")
    turn, ledger = _Turn(), CallLedger()
    for at, item in enumerate([*earlier, *given], start=-len(earlier)):
        where = f"input[{at}]" if at >= 0 else "previous_response_id"
        kind = item.get("type", "message")
        if kind == "reasoning":
            turn.reason(_reasoning_text(item, where, unseal), found)
        elif kind == "function_call":
            turn.calls.append(_call(item, where))
            ledger.call(turn.calls[-1].id, where, "call_id")
        elif kind == "function_call_output":
            turn.flush(found)
            found.append(_output(item, where))
            ledger.result(str(item["call_id"]), where, "call_id")
        elif kind == "message":
            _message(item, where, turn, found)
            ledger.speak(where, assistant=item.get("role") == "assistant")
        else:
            raise unsupported(
                f"{where}.type", f"{where} has the type {kind!r}, which this server does not take."
            )
    turn.flush(found)
    ledger.speak("", assistant=False)
    if not found:
        raise bad_request("'input' has no message, call or output in it; send one.", "input")
    return found


@dataclass
class _Turn:
    """An assistant message being put together from items."""

    reasoning: str = ""
    content: str | None = None
    calls: list[ToolCall] = field(default_factory=list)

    def reason(self, text: str, found: list[Message]) -> None:
        if self.content is not None or self.calls:
            self.flush(found)
        self.reasoning += text

    def say(self, text: str, found: list[Message]) -> None:
        if self.content is not None or self.calls:
            self.flush(found)
        self.content = text

    def flush(self, found: list[Message]) -> None:
        if self.reasoning or self.content is not None or self.calls:
            found.append(
                Message(
                    role="assistant",
                    content=self.content,
                    reasoning_content=self.reasoning or None,
                    tool_calls=self.calls or None,
                )
            )
        self.reasoning, self.content, self.calls = "", None, []


def _message(item: Mapping[str, Any], where: str, turn: _Turn, found: list[Message]) -> None:
    role = item.get("role")
    if role not in ROLES or role == "tool":
        raise bad_request(
            f"{where}.role is {role!r}; it must be system, developer, user or assistant.",
            f"{where}.role",
        )
    text = text_content(_content(item.get("content"), f"{where}.content"), f"{where}.content")
    if role == "assistant":
        turn.say(text or "", found)
    else:
        turn.flush(found)
        found.append(Message(role=role, content=text))


def _content(content: Any, where: str) -> str | list[Mapping[str, Any]]:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        return content
    raise bad_request(f"{where} must be a string or a list of content parts.", where)


def _reasoning_text(
    item: Mapping[str, Any], where: str, unseal: Callable[[str], str] | None
) -> str:
    """Text of a reasoning item: its content, else what it carries for us, else its summary.

    Beside content, an opaque value of another server does not matter.
    """
    content = _parts_text(item, "content", where)
    sealed = item.get("encrypted_content")
    if sealed is None or sealed == "":
        return content or _parts_text(item, "summary", where)
    if not isinstance(sealed, str):
        place = f"{where}.encrypted_content"
        raise bad_request(f"{place} must be a string.", place)
    try:
        if unseal is None:
            raise NotOurs
        carried = unseal(sealed)
    except NotOurs:
        if content:
            return content
        raise bad_request(
            f"{where}.encrypted_content was not made by this server, or was changed, or the server "
            "has another key since it started (see --reasoning-key); send the item's content.",
            f"{where}.encrypted_content",
            "invalid_encrypted_content",
        ) from None
    if content and content != carried:
        raise bad_request(
            f"{where}.content and encrypted_content hold different reasoning; send one.",
            f"{where}.content",
        )
    return carried


def _parts_text(item: Mapping[str, Any], member: str, where: str) -> str:
    place = f"{where}.{member}"
    parts = item.get(member) or []
    if not isinstance(parts, list):
        raise bad_request(f"{place} must be a list.", place)
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise bad_request(f"{place} must have text parts.", place)
    return "".join(str(text) for text in texts)


def _call(item: Mapping[str, Any], where: str) -> ToolCall:
    name = _string(item, "name", where)
    arguments = item.get("arguments")
    if not isinstance(arguments, str | None):
        raise bad_request(f"{where}.arguments must be a string.", f"{where}.arguments")
    # Parsed here, where the error can name the item; the conversation takes a mapping as it is.
    parsed = call_arguments(arguments, f"{where}.arguments")
    call = FunctionCall(name=name, arguments=parsed)
    return ToolCall(id=_string(item, "call_id", where), type="function", function=call)


def _output(item: Mapping[str, Any], where: str) -> Message:
    output = text_content(_content(item.get("output"), f"{where}.output"), f"{where}.output")
    return Message(role="tool", content=output, tool_call_id=_string(item, "call_id", where))


def _string(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise bad_request(f"{where}.{name} must be a non-empty string.", f"{where}.{name}")
    return value


def chat_tools(tools: Sequence[FlatTool] | None) -> list[Tool] | None:
    """Tools with the nested object of the chat API."""
    if tools is None:
        return None
    return [
        Tool(type=tool.type, function=ChatFunction(**tool.model_dump(exclude={"type"})))
        for tool in tools
    ]
