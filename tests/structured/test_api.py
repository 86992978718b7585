"""Formats and enforced calls through both APIs, streaming and not, from random weights."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from openai import OpenAI
from tests.structured.schemas import BOOLEAN, INTEGER, NUMBER, STRING, obj

CITY = obj(["city"], city=STRING, days={"type": "integer", "minimum": 1, "maximum": 7})
POINT = obj(x=NUMBER, y=NUMBER, tags={"type": "array", "items": STRING})
FUNCTIONS = {"weather": CITY, "plot": POINT, "stop": obj(now=BOOLEAN)}
MODES = ["disabled", "enabled", "adaptive"]
USER: Any = [{"role": "user", "content": "Go."}]


def tools(*, strict: bool = False, flat: bool = False) -> Any:
    found = []
    for name, schema in FUNCTIONS.items():
        function = {"name": name, "parameters": schema, "strict": strict}
        found.append({"type": "function", **(function if flat else {"function": function})})
    return found


def chat(client: OpenAI, stream: bool, mode: str = "disabled", **body: Any) -> Any:
    """A whole answer or one put together from a stream: content, reasoning, calls, finish."""
    body = {
        "model": "nano", "messages": USER, "max_tokens": 6000, "temperature": 1.0, "seed": 11,
        "extra_body": {"chat_template_kwargs": {"thinking_mode": mode}}, **body,
    }  # fmt: skip
    if not stream:
        choice = client.chat.completions.create(**body).choices[0]
        found = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()]
        return choice.message.content, found, choice.finish_reason
    content, calls, finish = "", [], None
    for chunk in client.chat.completions.create(**body, stream=True):
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        finish = choice.finish_reason or finish
        for call in choice.delta.tool_calls or ():
            if call.id is not None:
                calls.append((call.function.name, ""))
            name, arguments = calls[call.index]
            calls[call.index] = name, arguments + (call.function.arguments or "")
    return content or None, calls, finish


def check(calls: list[tuple[str, str]]) -> None:
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), FUNCTIONS[name])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_required_calls_come_whatever_the_thinking_mode(
    client: OpenAI, stream: bool, mode: str
) -> None:
    content, calls, finish = chat(client, stream, mode, tools=tools(), tool_choice="required")
    assert (content or "").strip() == ""
    assert finish == "tool_calls"
    assert calls
    check(calls)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_named_function_is_called_once(client: OpenAI, stream: bool, name: str) -> None:
    named: Any = {"type": "function", "function": {"name": name}}
    content, calls, finish = chat(client, stream, tools=tools(), tool_choice=named)
    assert [called for called, _ in calls] == [name]
    assert (content, finish) == (None, "tool_calls")
    check(calls)


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_calls_can_be_switched_off(client: OpenAI, stream: bool) -> None:
    for seed in range(6):
        _, calls, _ = chat(
            client, stream, tools=tools(), tool_choice="required", parallel_tool_calls=False,
            seed=seed,
        )  # fmt: skip
        assert len(calls) == 1
        check(calls)


@pytest.mark.parametrize("stream", [False, True])
def test_strict_tools_leave_text_free_under_auto(client: OpenAI, stream: bool) -> None:
    content, calls, finish = chat(client, stream, tools=tools(strict=True))
    assert finish == ("tool_calls" if calls else "stop")
    assert content or calls
    check(calls)


FORMATS: dict[str, tuple[Any, Any]] = {
    "object": ({"type": "json_object"}, {"type": "object"}),
    "schema": (
        {"type": "json_schema", "json_schema": {"name": "p", "schema": POINT, "strict": True}},
        POINT,
    ),
    "array": (
        {"type": "json_schema", "json_schema": {
            "name": "a", "schema": {"type": "array", "items": INTEGER, "minItems": 2}}},
        {"type": "array", "items": INTEGER, "minItems": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FORMATS)
def test_content_is_json_of_its_schema(client: OpenAI, stream: bool, mode: str, name: str) -> None:
    form, schema = FORMATS[name]
    content, calls, finish = chat(client, stream, mode, response_format=form)
    assert (calls, finish) == ([], "stop")
    jsonschema.validate(json.loads(content), schema)


@pytest.mark.parametrize("stream", [False, True])
def test_json_or_a_call_where_tools_are_offered(client: OpenAI, stream: bool) -> None:
    content, calls, _ = chat(
        client, stream, tools=tools(strict=True), response_format=FORMATS["schema"][0]
    )
    if calls:
        check(calls)
    else:
        jsonschema.validate(json.loads(content), POINT)


def respond(client: OpenAI, stream: bool, **body: Any) -> Any:
    body = {
        "model": "nano", "input": "Go.", "max_output_tokens": 6000, "temperature": 1.0,
        "extra_body": {"chat_template_kwargs": {"thinking_mode": "disabled"}, "seed": 5}, **body,
    }  # fmt: skip
    if not stream:
        return client.responses.create(**body)
    with client.responses.stream(**body) as events:
        for _ in events:
            pass
        return events.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "name": "plot"}], ids=["required", "named"]
)
def test_responses_enforce_calls(client: OpenAI, stream: bool, choice: Any) -> None:
    answer = respond(client, stream, tools=tools(strict=True, flat=True), tool_choice=choice)
    assert answer.status == "completed"
    assert {item.type for item in answer.output} == {"function_call"}
    check([(item.name, item.arguments) for item in answer.output])
    if choice != "required":
        assert [item.name for item in answer.output] == ["plot"]


@pytest.mark.parametrize("stream", [False, True])
def test_responses_take_a_text_format(client: OpenAI, stream: bool) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "p", "schema": POINT, "strict": True}}
    answer = respond(client, stream, text=form)
    jsonschema.validate(json.loads(answer.output_text), POINT)
    assert answer.text.format.type == "json_schema"


def test_a_cut_answer_says_so(client: OpenAI) -> None:
    content, calls, finish = chat(
        client, False, tools=tools(), tool_choice="required", max_tokens=20
    )
    assert finish == "length"
    assert content is None
    for _, arguments in calls:
        json.loads(arguments)


def test_one_seed_gives_one_answer_whatever_shares_the_batch(client: OpenAI) -> None:
    body: Any = {"tools": tools(), "tool_choice": "required", "seed": 3}
    assert chat(client, False, **body)[1] == chat(client, True, **body)[1]


def test_a_schema_that_compiles_to_nothing_is_a_400_and_the_server_lives(client: OpenAI) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!x)"}}}
    function = {"name": "f", "parameters": bad, "strict": True}
    with pytest.raises(openai.BadRequestError, match=r"properties\.a: the keyword 'pattern'") as e:
        chat(client, False, tools=[{"type": "function", "function": function}])
    assert e.value.code == "unsupported_schema"
    assert e.value.param == "tools[0].function.parameters"
