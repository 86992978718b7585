"""Every error has OpenAI's shape and names what is wrong; nothing is a 500."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from tests.clients.servers import ScriptedServer, ServerProcess, scripted_server

from gnomon.engine.models.loader import resolve_model

CHAT: dict[str, Any] = {"model": "nano", "messages": [{"role": "user", "content": "x"}]}
RESPONSES: dict[str, Any] = {"model": "nano", "input": "x"}
TEXT: dict[str, Any] = {"model": "nano", "prompt": "x"}


def tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **function}}]}


def flat_tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "name": "f", **function}]}


def say(**message: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}, message]}


def call(arguments: Any) -> dict[str, Any]:
    made = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return say(role="assistant", content=None, tool_calls=[made])


CHAT_CASES: dict[str, tuple[dict[str, Any], int, str | None, str]] = {
    "unknown model": ({"model": "gpt-9"}, 404, "model", "gpt-9"),
    "no messages member": ({"messages": None}, 400, "messages", "messages"),
    "empty messages": ({"messages": []}, 400, "messages", "empty"),
    "messages is text": ({"messages": "hi"}, 400, "messages", "list"),
    "a message is text": ({"messages": ["hi"]}, 400, "messages[0]", "messages[0]"),
    "no role": ({"messages": [{"content": "x"}]}, 400, "messages[0].role", "role"),
    "unknown role": (say(role="root", content="x"), 400, "messages[1].role", "root"),
    "no content": (say(role="user"), 400, "messages[1].content", "missing"),
    "empty assistant": (say(role="assistant"), 400, "messages[1].content", "neither"),
    "content is a number": (say(role="user", content=3), 400, "messages[1].content", "content"),
    "an image": (
        say(role="user", content=[{"type": "image_url", "image_url": {"url": "file:///etc"}}]),
        400,
        "messages[1].content[0]",
        "text only",
    ),
    "a part without text": (
        say(role="user", content=[{"type": "text"}]), 400, "messages[1].content[0].text", "string",
    ),
    "half a surrogate pair": (say(role="user", content="a\ud800b"), 400, None, "surrogate"),
    "half a surrogate pair in a name": ({"a\ud800": 1}, 400, None, "surrogate"),
    "not a number": (say(role="user", content="x", name=float("nan")), 400, None, "not JSON"),
    "a part whose type is a list": (
        say(role="user", content=[{"type": ["text"]}]), 400, "messages[1].content[0]", "text only",
    ),
    "a part with an image beside its text": (
        say(role="user", content=[{"type": "text", "text": "a", "image": 1}]),
        400, "messages[1].content[0].image", "not known",
    ),
    "tool message without id": (
        say(role="tool", content="x"), 400, "messages[1].tool_call_id", "missing",
    ),
    "arguments that are not JSON": (
        call("{x"), 400, "messages[1].tool_calls[0].function.arguments", "not valid JSON",
    ),
    "arguments that are no object": (
        call("[1]"), 400, "messages[1].tool_calls[0].function.arguments", "object",
    ),
    "max_tokens negative": ({"max_tokens": -1}, 400, "max_tokens", "greater than"),
    "max_tokens zero": ({"max_tokens": 0}, 400, "max_tokens", "greater than"),
    "max_tokens huge": ({"max_tokens": 10**15}, 400, "max_tokens", "less than"),
    "max_tokens beyond the context": ({"max_tokens": 5000}, 400, "max_tokens", "4096"),
    "max_completion_tokens beyond the context": (
        {"max_completion_tokens": 5000}, 400, "max_completion_tokens", "4096",
    ),
    "max_tokens is text": ({"max_tokens": "9"}, 400, "max_tokens", "integer"),
    "max_tokens is a fraction": ({"max_tokens": 1.5}, 400, "max_tokens", "integer"),
    "max_tokens is a boolean": ({"max_tokens": True}, 400, "max_tokens", "integer"),
    "two caps that differ": (
        {"max_tokens": 1, "max_completion_tokens": 2}, 400, "max_tokens", "newer name",
    ),
    "temperature too high": ({"temperature": 5.0}, 400, "temperature", "less than"),
    "temperature is text": ({"temperature": "hot"}, 400, "temperature", "number"),
    "top_p too high": ({"top_p": 1.5}, 400, "top_p", "less than"),
    "top_p zero": ({"top_p": 0}, 400, "top_p", "greater than"),
    "top_k": ({"top_k": -2}, 400, "top_k", "greater than"),
    "min_p": ({"min_p": 2}, 400, "min_p", "less than"),
    "seed too large": ({"seed": 2**70}, 400, "seed", "less than"),
    "stop is empty": ({"stop": ""}, 400, "stop", "at least 1"),
    "too many stops": ({"stop": ["a"] * 17}, 400, "stop", "16"),
    "stream is text": ({"stream": "yes"}, 400, "stream", "boolean"),
    "stream_options": ({"stream_options": {"x": 1}}, 400, "stream_options.x", "x"),
    "top_logprobs alone": ({"top_logprobs": 3}, 400, "top_logprobs", "needs 'logprobs'"),
    "too many top_logprobs": (
        {"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "at most 20 are told",
    ),
    "n": ({"n": 129}, 400, "n", "at most 128 choices"),
    "best_of": ({"n": 2, "best_of": 3}, 400, "best_of", "it must be n, here 2"),
    "logit_bias of no token": ({"logit_bias": {"x": 1}}, 400, "logit_bias", "no token id"),
    "logit_bias too large": ({"logit_bias": {"5": 101}}, 400, "logit_bias.5", "100"),
    "presence_penalty": ({"presence_penalty": 2.5}, 400, "presence_penalty", "less than"),
    "frequency_penalty": ({"frequency_penalty": -3}, 400, "frequency_penalty", "greater"),
    "repetition_penalty": ({"repetition_penalty": 0}, 400, "repetition_penalty", "greater"),
    "min_tokens above max_tokens": (
        {"min_tokens": 9, "max_tokens": 3}, 400, "min_tokens", "more than",
    ),
    "an unknown response format": (
        {"response_format": {"type": "xml"}}, 400, "response_format.type", "not supported",
    ),
    "a format without a schema": (
        {"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema", "schema",
    ),
    "a schema without a name": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        400, "response_format.json_schema.name", "name",
    ),
    "an unsupported keyword in a format": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
            "type": "object", "properties": {"a": {"not": {}}}}}}},
        400, "response_format.json_schema.schema", "properties.a: the keyword 'not'",
    ),
    "structured output without an end": (
        {"response_format": {"type": "json_object"}, "ignore_eos": True}, 400, "ignore_eos", "comb",
    ),
    "functions": ({"functions": [{"name": "f"}]}, 400, "functions", "not supported"),
    "unknown field": ({"tempreature": 1}, 400, "tempreature", "Unrecognized"),
    "tool_choice unknown": ({**tool(), "tool_choice": "always"}, 400, "tool_choice", "always"),
    "tool_choice required without tools": (
        {"tool_choice": "required"}, 400, "tool_choice", "has none",
    ),
    "tool_choice names nobody": (
        {**tool(), "tool_choice": {"type": "function", "function": {"name": "g"}}},
        400, "tool_choice", "'g'",
    ),
    "a tool that is no function": (
        {"tools": [{"type": "web", "function": {"name": "f"}}]}, 400, "tools[0].type", "function",
    ),
    "a tool without a function": (
        {"tools": [{"type": "function"}]}, 400, "tools[0].function", "function",
    ),
    "a tool with a bad name": (tool(name="a b"), 400, "tools[0].function.name", "a b"),
    "two tools of one name": (
        {"tools": tool()["tools"] * 2}, 400, "tools", "two functions",
    ),
    "a keyword that strict tools cannot have": (
        tool(strict=True, parameters={"type": "object", "properties": {
            "a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}}),
        400, "tools[0].function.parameters", "properties.a: the keyword 'uniqueItems'",
    ),
    "a schema that is text": (
        tool(parameters="x"), 400, "tools[0].function.parameters", "JSON schema object",
    ),
    "a schema of another type": (
        tool(parameters={"type": "array"}), 400, "tools[0].function.parameters", "object",
    ),
    "a schema with an unknown type": (
        tool(parameters={"type": "object", "properties": {"a": {"type": "dict"}}}),
        400, "tools[0].function.parameters", "properties.a has the unknown type 'dict'",
    ),
    "a schema with bad required": (
        tool(parameters={"type": "object", "required": "a"}),
        400, "tools[0].function.parameters", "required",
    ),
    "a reserved template variable": (
        {"chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs.messages", "server",
    ),
    "a template that refuses": (
        {"chat_template_kwargs": {"thinking_mode": "loud"}}, 400, None, "thinking_mode",
    ),
    "reasoning_effort": ({"reasoning_effort": "huge"}, 400, "reasoning_effort", "huge"),
}  # fmt: skip

RESPONSES_CASES: dict[str, tuple[dict[str, Any], int, str | None, str]] = {
    "unknown model": ({"model": "gpt-9"}, 404, "model", "gpt-9"),
    "no input": ({"input": None}, 400, "input", "input"),
    "empty input": ({"input": []}, 400, "input", "empty"),
    "input is a number": ({"input": 3}, 400, "input", "input"),
    "unknown role": ({"input": [{"role": "root", "content": "x"}]}, 400, "input[0].role", "root"),
    "unknown item": ({"input": [{"type": "computer_call"}]}, 400, "input[0].type", "computer_call"),
    "an image": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        400, "input[0].content[0]", "text only",
    ),
    "a call without an id": (
        {"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]},
        400, "input[0].call_id", "call_id",
    ),
    "an output without an id": (
        {"input": [{"type": "function_call_output", "output": "x"}]},
        400, "input[0].call_id", "call_id",
    ),
    "arguments that are not JSON": (
        {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{x"}]},
        400, "input[0].arguments", "not valid JSON",
    ),
    "max_output_tokens negative": ({"max_output_tokens": -1}, 400, "max_output_tokens", "greater"),
    "max_output_tokens huge": ({"max_output_tokens": 9999}, 400, "max_output_tokens", "4096"),
    "previous_response_id": (
        {"previous_response_id": "resp_1"}, 404, "previous_response_id", "no response",
    ),
    "background without a store": (
        {"background": True, "store": False}, 400, "background", "'store' is false",
    ),
    "truncation": ({"truncation": "middle"}, 400, "truncation", "'auto'"),
    "include": (
        {"include": ["file_search_call.results"]}, 400, "include[0]", "not supported",
    ),
    "an unknown summary": ({"reasoning": {"summary": "long"}}, 400, "reasoning.summary", "long"),
    "metadata with a long value": (
        {"metadata": {"a": "x" * 513}}, 400, "metadata.a", "512 characters",
    ),
    "metadata with too many keys": (
        {"metadata": {str(n): "x" for n in range(17)}}, 400, "metadata", "at most 16",
    ),
    "max_tool_calls": ({"max_tool_calls": 0}, 400, "max_tool_calls", "greater than"),
    "encrypted_content of another": (
        {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAAAB"}]},
        400, "input[0].encrypted_content", "not made by this server",
    ),
    "summary": ({"reasoning": {"summary": "detailed"}}, 400, "reasoning.summary", "not supported"),
    "effort": ({"reasoning": {"effort": "huge"}}, 400, "reasoning.effort", "huge"),
    "a tool of another type": (
        {"tools": [{"type": "web_search", "name": "w"}]}, 400, "tools[0].type", "web_search",
    ),
    "a tool's schema": (
        flat_tool(parameters={"type": "array"}), 400, "tools[0].parameters", "object",
    ),
    "a keyword that strict tools cannot have": (
        flat_tool(strict=True, parameters={"type": "object", "propertyNames": {"maxLength": 2}}),
        400, "tools[0].parameters", "the keyword 'propertyNames'",
    ),
    "tool_choice required without tools": (
        {"tool_choice": "required"}, 400, "tool_choice", "has none",
    ),
    "an unknown text format": ({"text": {"format": {"type": "x"}}}, 400, "text.format.type", "'x'"),
    "unknown field": ({"speed": 1}, 400, "speed", "Unrecognized"),
}  # fmt: skip

TEXT_CASES: dict[str, tuple[dict[str, Any], int, str | None, str]] = {
    "unknown model": ({"model": "gpt-9"}, 404, "model", "gpt-9"),
    "empty prompt": ({"prompt": ""}, 400, "prompt", "empty"),
    "no prompts": ({"prompt": []}, 400, "prompt", "empty"),
    "one empty prompt": ({"prompt": ["a", ""]}, 400, "prompt", "empty"),
    "an id that does not exist": ({"prompt": [10**6]}, 400, "prompt", "1000000"),
    "a negative id": ({"prompt": [-1]}, 400, "prompt[0]", ""),
    "an object": ({"prompt": {}}, 400, "prompt", "prompt"),
    "too many choices": ({"prompt": ["x"] * 9, "n": 128}, 400, "n", "1152 generations"),
    "suffix": ({"suffix": "x"}, 400, "suffix", "not supported"),
    "logprobs": ({"logprobs": 21}, 400, "logprobs", "at most 20 are told"),
    "prompt_logprobs": ({"prompt_logprobs": 99}, 400, "prompt_logprobs", "at most 20 are told"),
    "best_of": ({"best_of": 3}, 400, "best_of", "it must be n, here 1"),
}


def check(answer: httpx.Response, status: int, param: str | None, part: str) -> None:
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert part in error["message"]
    assert "Traceback" not in answer.text


def post(url: str, body: Any) -> httpx.Response:
    text = body if isinstance(body, str) else json.dumps(body)
    return httpx.post(
        url, content=text.encode(), headers={"content-type": "application/json"}, timeout=60
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("path", "body", "case"),
    [
        *(("chat/completions", CHAT, case) for case in CHAT_CASES.items()),
        *(("responses", RESPONSES, case) for case in RESPONSES_CASES.items()),
        *(("completions", TEXT, case) for case in TEXT_CASES.items()),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_wrong_request_is_refused_by_name(
    nano: ServerProcess, path: str, body: dict[str, Any], case: tuple[str, Any], stream: bool
) -> None:
    change, status, param, part = case[1]
    check(
        post(f"{nano.base_url}/{path}", {**body, "stream": stream, **change}), status, param, part
    )


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "null", '"x"', '{"model": NaN}', "{" * 2000, "[" * 100000, "\x00"]
)
@pytest.mark.parametrize("path", ["chat/completions", "responses", "completions"])
def test_a_body_that_is_no_request_is_a_400(nano: ServerProcess, path: str, body: str) -> None:
    answer = post(f"{nano.base_url}/{path}", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b'{"model": "\xff"}', b"[" * 100000, b"9" * 5000, b"{"])
def test_a_body_that_cannot_be_read_as_json_has_one_code(nano: ServerProcess, body: bytes) -> None:
    answer = httpx.post(
        f"{nano.base_url}/chat/completions",
        content=body,
        headers={"content-type": "application/json"},
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


def test_a_body_of_another_content_type_is_a_400(nano: ServerProcess) -> None:
    answer = httpx.post(f"{nano.base_url}/chat/completions", data={"model": "nano"})
    assert answer.status_code == 400


def test_deep_nesting_is_refused_and_not_fatal(nano: ServerProcess) -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = {"a": deep}
    answer = post(
        f"{nano.base_url}/chat/completions",
        {**CHAT, "chat_template_kwargs": {"thinking_mode": deep}},
    )
    assert answer.status_code in (200, 400)
    schema = {"type": "object", "properties": {"a": deep}}
    answer = post(f"{nano.base_url}/chat/completions", {**CHAT, **tool(parameters=schema)})
    assert answer.status_code == 400


def test_unknown_paths_and_methods_have_the_same_shape(nano: ServerProcess) -> None:
    answer = httpx.get(f"{nano.base_url}/nothing")
    check(answer, 404, None, "/v1/nothing")
    assert answer.json()["error"]["code"] == "unknown_url"
    check(httpx.get(f"{nano.base_url}/chat/completions"), 405, None, "GET")
    check(httpx.get(f"{nano.base_url}/models/other"), 404, "model", "other")


def test_a_prompt_longer_than_the_context_names_limit_and_count(client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "word " * 6000}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="nano", messages=messages)
    assert caught.value.code == "context_length_exceeded"
    assert "4096 tokens" in caught.value.message
    assert max(map(int, re.findall(r"\d+", caught.value.message))) > 4096


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError),
        ({"messages": []}, openai.BadRequestError),
        ({"max_tokens": -1}, openai.BadRequestError),
    ],
)
def test_the_client_raises_its_own_errors(
    client: OpenAI, change: dict[str, Any], kind: type[openai.APIStatusError]
) -> None:
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{**CHAT, **change})
    assert caught.value.type in ("invalid_request_error", "not_found_error")
    assert caught.value.param in change


@pytest.fixture(scope="module")
def locked() -> Any:
    with scripted_server(resolve_model("nano"), api_key="secret") as server:
        yield server


def test_a_key_is_asked_for(locked: ScriptedServer) -> None:
    locked.say("hi")
    asked: Any = {"model": "scripted", "messages": CHAT["messages"]}
    good = OpenAI(base_url=locked.base_url, api_key="secret", max_retries=0)
    assert good.chat.completions.create(**asked).choices[0].message.content == "hi"
    bad = OpenAI(base_url=locked.base_url, api_key="secret2", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as caught:
        bad.chat.completions.create(**asked)
    assert caught.value.code == "invalid_api_key"
    for path in ("/v1/models", "/v1/nothing"):
        assert httpx.get(locked.url + path).status_code == 401
    for headers in ({"authorization": "secret"}, {"authorization": "Bearer"},
                    {"authorization": b"Bearer \xff"}):  # fmt: skip
        assert httpx.get(f"{locked.base_url}/models", headers=headers).status_code == 401
    for path in ("/health", "/version", "/metrics", "/server_info", "/openapi.json"):
        told = httpx.get(locked.url + path)
        assert told.status_code == 200
        assert "secret" not in told.text
