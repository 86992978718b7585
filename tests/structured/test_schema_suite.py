"""Every schema as a required strict tool of a model with random weights, streaming and not."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest
from openai import OpenAI
from tests.structured.schemas import CASES, Schema
from tests.structured.walk import tokenizer

CUT_AT = 6000
# Random weights spell a marker in a dozen tokens. A little bias to its own token, which is allowed
# at every place of a string, keeps the suite short; the walks of tests/unit/grammar have none.
MARKER_BIAS = 4.0
CONCURRENT = 24


def test_there_are_enough_schemas_and_none_twice() -> None:
    assert len({json.dumps(schema, sort_keys=True) for schema in CASES.values()}) >= 200


def request(name: str, schema: Schema) -> dict[str, Any]:
    function = {"name": "case", "description": name, "parameters": schema, "strict": True}
    return {
        "model": "nano",
        "messages": [{"role": "user", "content": f"Call the function for {name}."}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": CUT_AT,
        "temperature": 1.0,
        "seed": len(name),
        "logit_bias": {str(tokenizer().id_of("]<]minimax[>[")): MARKER_BIAS},
        "chat_template_kwargs": {"thinking_mode": "disabled"},
    }


def whole(client: OpenAI, body: dict[str, Any]) -> tuple[str, str, list[str]]:
    extra = {"chat_template_kwargs": body.pop("chat_template_kwargs")}
    choice = client.chat.completions.create(**body, extra_body=extra).choices[0]
    calls = choice.message.tool_calls or []
    return (
        str(choice.finish_reason),
        choice.message.content or "",
        [call.function.arguments for call in calls],
    )


def streamed(client: OpenAI, body: dict[str, Any]) -> tuple[str, str, list[str]]:
    extra = {"chat_template_kwargs": body.pop("chat_template_kwargs")}
    finish, content, arguments = "", "", []
    for chunk in client.chat.completions.create(**body, extra_body=extra, stream=True):
        choice = chunk.choices[0]
        finish = choice.finish_reason or finish
        content += choice.delta.content or ""
        for call in choice.delta.tool_calls or ():
            if call.id is not None:
                arguments.append("")
            arguments[call.index] += call.function.arguments or ""
    return finish, content, arguments


def responded(client: OpenAI, body: dict[str, Any]) -> tuple[str, str, list[str]]:
    """The same through a stream of the Responses API, put together from its deltas."""
    function = body["tools"][0]["function"]
    extra = {name: body[name] for name in ("chat_template_kwargs", "logit_bias", "seed")}
    arguments: dict[int, str] = {}
    with client.responses.stream(
        model=body["model"], input=body["messages"][0]["content"],
        tools=[{"type": "function", **function}], tool_choice="required",
        parallel_tool_calls=False, max_output_tokens=CUT_AT, temperature=1.0, extra_body=extra,
    ) as events:  # fmt: skip
        for event in events:
            if event.type == "response.function_call_arguments.delta":
                arguments[event.output_index] = arguments.get(event.output_index, "") + event.delta
        response = events.get_final_response()
    calls = [item.arguments for item in response.output if item.type == "function_call"]
    assert calls == list(arguments.values())
    others = "".join(item.type for item in response.output if item.type != "function_call")
    return "tool_calls" if response.status == "completed" else "cut", others, calls


def problem(schema: Schema, got: tuple[str, str, list[str]]) -> str | None:
    """What is wrong with an answer; None if nothing is."""
    finish, content, arguments = got
    if finish != "tool_calls" or content or len(arguments) != 1:
        return f"finish_reason {finish}, content {content!r}, {len(arguments)} calls"
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        value = json.loads(arguments[0])
        kind(schema, format_checker=kind.FORMAT_CHECKER).validate(value)
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{error}"[:300]
    return None


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mode", [whole, streamed, responded], ids=["whole", "streamed", "responses streamed"]
)
def test_a_required_strict_call_always_satisfies_its_schema(client: OpenAI, mode: Any) -> None:
    with ThreadPoolExecutor(CONCURRENT) as pool:
        answers = pool.map(lambda case: mode(client, request(*case)), CASES.items())
        found = {
            name: problem(schema, answer)
            for (name, schema), answer in zip(CASES.items(), answers, strict=True)
        }
    assert {name: what for name, what in found.items() if what is not None} == {}
    assert len(found) == len(CASES)
