"""Request parts, checked and converted, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gnomon.engine.errors import CheckpointError
from gnomon.engine.serve.conversation import template_kwargs, template_messages
from gnomon.engine.serve.errors import ApiError
from gnomon.engine.serve.options import ServeOptions
from gnomon.engine.serve.parsers.m3_reasoning import M3ReasoningDialect
from gnomon.engine.serve.protocol.chat import ChatRequest, Message
from gnomon.engine.serve.protocol.schema import schema_problem
from gnomon.engine.serve.responses_input import messages_of
from gnomon.engine.serve.sampling import GenerationDefaults, Room, output_cap, sampling_params

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


def test_every_neutral_field_is_taken_and_only_with_a_neutral_value() -> None:
    for name, neutral in ChatRequest.NEUTRAL.items():
        for value in (None, *neutral):
            ChatRequest.model_validate({**CHAT, name: value})
        with pytest.raises(ApiError) as caught:
            ChatRequest.model_validate({**CHAT, name: "something else"})
        assert (caught.value.status, caught.value.param) == (400, name)


def test_no_field_is_in_two_classes() -> None:
    assert not ChatRequest.ACCEPTED & ChatRequest.NEUTRAL.keys()
    assert not ChatRequest.model_fields.keys() & ChatRequest.NEUTRAL.keys()


def test_one_is_not_true() -> None:
    with pytest.raises(ApiError):
        ChatRequest.model_validate({**CHAT, "priority": False})


def convert(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    given = [Message.model_validate(message) for message in messages]
    return template_messages(given, M3ReasoningDialect())


def test_messages_reach_the_template_in_one_shape() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    found = convert(
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "reasoning": "why", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "4", "from_another_server": 1},
        {"role": "assistant", "content": "<mm:think>so</mm:think>four"},
    )
    assert found == [
        {"role": "user", "content": "ab"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "why",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": [1]}}}
            ],
        },
        {"role": "tool", "content": "4", "tool_call_id": "c"},
        {"role": "assistant", "content": "four", "reasoning_content": "so"},
    ]


@pytest.mark.parametrize("arguments", ["", None, "{}", {}])
def test_a_call_without_arguments_has_an_empty_mapping(arguments: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    found = convert({"role": "assistant", "content": None, "tool_calls": [call]})
    assert found[0]["tool_calls"][0]["function"]["arguments"] == {}


def test_items_of_one_turn_become_one_message() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    found = messages_of(
        "Be brief.",
        [
            {"role": "user", "content": "x"},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "t"}]},
            call,
            {**call, "call_id": "d"},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
            {"type": "function_call_output", "call_id": "d", "output": "2"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
            {"role": "assistant", "content": "done"},
            {"role": "assistant", "content": "more"},
        ],
    )  # fmt: skip
    assert [m.role for m in found] == [
        "system", "user", "assistant", "tool", "tool", "assistant", "assistant",
    ]  # fmt: skip
    turn = found[2]
    assert (turn.reasoning_content, turn.content) == ("r", "t")
    assert [c.id for c in turn.tool_calls or []] == ["c", "d"]
    assert (found[5].reasoning_content, found[5].content) == ("s", "done")
    assert found[6].content == "more"


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{x"},
         "input[0].arguments"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "[1]"},
         "input[0].arguments"),
        ({"type": "reasoning"}, "input"),
    ],
)  # fmt: skip
def test_a_wrong_item_is_named_as_the_responses_api_spells_it(
    item: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        messages_of(None, [item])
    assert caught.value.param == param
    assert "messages" not in caught.value.message


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"type": "object", "properties": {"a": {"type": "dict"}}}, "properties.a"),
        ({"properties": {"a": {"items": {"type": 3}}}}, "properties.a.items"),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, 3]}}}, "properties.a.anyOf.1"),
        ({"properties": []}, "'properties'"),
        ({"required": [1]}, "'required'"),
        ({"properties": {"a": {"enum": "x"}}}, "'enum'"),
        ({"$defs": {"a": {"$ref": 3}}}, "$defs.a"),
        ([], "JSON schema object"),
        ({"type": "string"}, "'string'"),
    ],
)
def test_a_wrong_schema_names_its_place(schema: Any, part: str) -> None:
    assert part in (schema_problem(schema) or "")


def test_good_schemas_have_no_problem() -> None:
    for schema in (
        {},
        {"type": "object"},
        {"properties": {"a": True, "b": {"type": ["string", "null"], "enum": ["x", None]}}},
        {
            "$defs": {"t": {"items": {"$ref": "#/$defs/t"}}},
            "properties": {"a": {"$ref": "#/$defs/t"}},
        },
    ):
        assert schema_problem(schema) is None


@pytest.mark.parametrize(
    ("asked", "prompt", "default", "granted"),
    [
        (None, 10, 256, 90),
        (None, 10, 20, 20),
        (None, 99, None, 1),
        (5, 10, 256, 5),
        (90, 10, 1, 90),
    ],
)
def test_the_output_cap(asked: int | None, prompt: int, default: int | None, granted: int) -> None:
    assert output_cap(("max_tokens", asked), prompt, Room(100, default, "messages")) == granted


@pytest.mark.parametrize(("asked", "prompt"), [(91, 10), (None, 100), (1, 100), (None, 500)])
def test_what_does_not_fit_names_limit_and_count(asked: int | None, prompt: int) -> None:
    with pytest.raises(ApiError, match=r"100 tokens.*" + str(prompt)) as caught:
        output_cap(("max_tokens", asked), prompt, Room(100, 256, "messages"))
    assert caught.value.code == "context_length_exceeded"


def test_the_request_wins_over_the_generation_config() -> None:
    defaults = GenerationDefaults(temperature=0.7, top_p=0.9, top_k=40, stop_token_ids=(3,))
    asked = ChatRequest.model_validate({**CHAT, "temperature": 0, "stop_token_ids": [5, 3]})
    params = sampling_params(asked, defaults, 7)
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0, 0.9, 40, 7)
    assert params.stop_token_ids == (5, 3)
    endless = ChatRequest.model_validate({**CHAT, "ignore_eos": True, "min_tokens": 3})
    assert sampling_params(endless, defaults, 7).stop_token_ids == ()


def test_the_generation_config_is_read(tmp_path: Path) -> None:
    assert GenerationDefaults.load(tmp_path) == GenerationDefaults()
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"do_sample": False, "eos_token_id": [1, 2], "top_k": 0}))
    found = GenerationDefaults.load(tmp_path)
    assert (found.temperature, found.top_k, found.stop_token_ids) == (0.0, -1, (1, 2))
    file.write_text("{")
    with pytest.raises(CheckpointError, match="generation_config"):
        GenerationDefaults.load(tmp_path)


def test_effort_switches_thinking_unless_the_request_says_how() -> None:
    assert template_kwargs(None, None, "e") == {}
    assert template_kwargs(None, "none", "e") == {"thinking_mode": "disabled"}
    assert template_kwargs({"a": 1}, "low", "e") == {"thinking_mode": "enabled", "a": 1}
    explicit = {"thinking_mode": "adaptive"}
    assert template_kwargs(explicit, "high", "e") == explicit


def test_serve_options_hold_the_engine_s() -> None:
    options = ServeOptions(model="m", kv_cache_dtype="mxfp4", served_model_name=("a", "b"))
    engine = options.engine_options()
    assert type(engine).__name__ == "EngineOptions"
    assert engine.kv_cache_dtype == options.kv_cache_dtype
    assert options.model_names == ("a", "b")
    assert ServeOptions(model="m").model_names == ("m",)


def test_a_served_name_without_letters_is_refused() -> None:
    with pytest.raises(ValidationError, match="at least 1 character"):
        ServeOptions(model="nano", served_model_name=("",))
