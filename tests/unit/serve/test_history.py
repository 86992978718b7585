"""Calls and results of a history belong together; reasoning reaches the template once."""

from __future__ import annotations

from typing import Any

import pytest

from gnomon.engine.serve.conversation import template_messages
from gnomon.engine.serve.errors import ApiError
from gnomon.engine.serve.history import require_answers
from gnomon.engine.serve.parsers.base import ContentDelta, Event, ReasoningDelta
from gnomon.engine.serve.parsers.m3_reasoning import M3ReasoningDialect
from gnomon.engine.serve.protocol.chat import Message
from gnomon.engine.serve.reasoning_format import Blocks
from gnomon.engine.serve.responses_input import messages_of

USER = {"role": "user", "content": "x"}
SAID = {"role": "assistant", "content": "y"}


def calls(*ids: str | None) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    made = [{"id": i, "type": "function", "function": function} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "1"}


GOOD = {
    "no calls": [USER, SAID, USER],
    "in another order": [USER, calls("a", "b"), result("b"), result("a"), USER],
    "the same id in another turn": [USER, calls("a"), result("a"), calls("a"), result("a")],
    "assistant messages in a row are one turn": [USER, calls("a"), calls("b"), result("a"),
                                                 result("b")],
}  # fmt: skip

BAD: dict[str, tuple[list[dict[str, Any]], str]] = {
    "an orphan": ([USER, result("a")], "messages[1].tool_call_id"),
    "another id": ([USER, calls("a"), result("b")], "messages[2].tool_call_id"),
    "answered twice": ([USER, calls("a"), result("a"), result("a")], "messages[3].tool_call_id"),
    "no result": ([USER, calls("a")], "messages[1].tool_calls[0]"),
    "partial results": ([USER, calls("a", "b"), result("a"), USER], "messages[3]"),
    "partial results, then the assistant": ([calls("a", "b"), result("a"), SAID], "messages[2]"),
    "two calls of one id": ([calls("a", "a")], "messages[0].tool_calls[1].id"),
    "no id": ([calls(None)], "messages[0].tool_calls[0].id"),
}


@pytest.mark.parametrize("messages", GOOD.values(), ids=GOOD)
def test_a_consistent_history_is_taken(messages: list[dict[str, Any]]) -> None:
    require_answers([Message.model_validate(message) for message in messages])


@pytest.mark.parametrize(("messages", "param"), BAD.values(), ids=BAD)
def test_an_inconsistent_history_names_its_message(
    messages: list[dict[str, Any]], param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        require_answers([Message.model_validate(message) for message in messages])
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param.split(".")[0] in caught.value.message


CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "1"}


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([OUTPUT], "input[0].call_id"),
        ([CALL, {**OUTPUT, "call_id": "b"}], "input[1].call_id"),
        ([CALL], "input[0]"),
        ([CALL, {"role": "user", "content": "x"}, OUTPUT], "input[1]"),
        ([{"type": "reasoning", "encrypted_content": "x"}], "input[0].encrypted_content"),
    ],
)
def test_responses_items_are_held_to_the_same(items: list[dict[str, Any]], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        messages_of(None, items)
    assert caught.value.param == param


def test_text_between_calls_comes_back_as_one_turn() -> None:
    text = {"role": "assistant", "content": "and"}
    found = messages_of(
        None, [CALL, text, {**CALL, "call_id": "b"}, OUTPUT, {**OUTPUT, "call_id": "b"}]
    )
    require_answers(found)


@pytest.mark.parametrize(
    "message",
    [
        {"reasoning_content": "why", "content": "so"},
        {"reasoning": "why", "content": "so"},
        {"reasoning": "why", "reasoning_content": "why", "content": "so"},
        {"content": "<mm:think>why</mm:think>so"},
        {"content": "<mm:think>why</mm:think>so", "reasoning_content": "why"},
    ],
)
def test_reasoning_reaches_the_template_once(message: dict[str, Any]) -> None:
    given = [Message.model_validate({"role": "assistant", **message})]
    assert template_messages(given, M3ReasoningDialect()) == [
        {"role": "assistant", "content": "so", "reasoning_content": "why"}
    ]


@pytest.mark.parametrize(
    "message",
    [
        {"reasoning": "a", "reasoning_content": "b", "content": "so"},
        {"content": "<mm:think>a</mm:think>so", "reasoning_content": "b"},
    ],
)
def test_two_different_reasonings_are_refused(message: dict[str, Any]) -> None:
    given = [Message.model_validate({"role": "assistant", **message})]
    with pytest.raises(ApiError, match="different reasoning"):
        template_messages(given, M3ReasoningDialect())


@pytest.mark.parametrize(
    "arguments",
    ['{"a": "\\ud800"}', '{"a": NaN}', '{"a": 1e999}', '{"a": ' + "9" * 5000 + "}"],
)
def test_arguments_that_no_prompt_can_hold_are_refused(arguments: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    given = [Message.model_validate({"role": "assistant", "content": None, "tool_calls": [call]})]
    with pytest.raises(ApiError, match="not valid JSON"):
        template_messages(given, None)


def test_arguments_too_deep_for_a_template_are_refused_by_name() -> None:
    def history(depth: int) -> list[Message]:
        function = {"name": "f", "arguments": '{"a":' * depth + "1" + "}" * depth}
        call = {"id": "a", "type": "function", "function": function}
        return [
            Message.model_validate({"role": "assistant", "content": None, "tool_calls": [call]})
        ]

    assert template_messages(history(64), None)
    with pytest.raises(ApiError, match=r"messages\[0\].*nested deeper than 64 levels"):
        template_messages(history(65), None)


@pytest.mark.parametrize("keep", [False, True])
def test_a_block_in_the_content_is_the_model_s_own_and_always_closed(keep: bool) -> None:
    events: list[Event] = [ReasoningDelta("wh"), ReasoningDelta("y"), ContentDelta("so")]
    whole = Blocks(M3ReasoningDialect(), keep=keep)
    told = [*whole.take(events), *whole.end()]
    cut = Blocks(M3ReasoningDialect(), keep=keep)
    short = [*cut.take(events[:1]), *cut.end()]

    def text(found: list[Event], kind: type) -> str:
        return "".join(event.text for event in found if isinstance(event, kind))

    assert text(told, ContentDelta) == "<mm:think>why</mm:think>so"
    assert text(short, ContentDelta) == "<mm:think>wh</mm:think>"
    assert text(told, ReasoningDelta) == ("why" if keep else "")
