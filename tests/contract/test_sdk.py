"""The real openai client: every feature parses, whole and streamed; helpers get to the end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import OpenAI
from tests.contract.asking import BASE, CHAT, COMPLETIONS, RESPONSES
from tests.contract.features import CASES, FEATURES

NAMED = {CHAT: ("messages",), RESPONSES: (), COMPLETIONS: ("prompt",)}


def create(client: OpenAI, path: str, change: dict[str, Any], **fields: Any) -> Any:
    """Call the client's method; what its signature does not know goes into extra_body."""
    body = {"seed": 5, **BASE[path], **change}
    cap = "max_output_tokens" if path == RESPONSES else "max_tokens"
    body[cap] = min(body[cap] or 4, 4)  # reading is what is tested here
    if "max_completion_tokens" in body:
        body["max_completion_tokens"] = body[cap]
    named = {name: body.pop(name) for name in NAMED[path]}
    method = {
        CHAT: client.chat.completions.create,
        RESPONSES: client.responses.create,
        COMPLETIONS: client.completions.create,
    }[path]
    return method(model="nano", **named, **fields, extra_body=body)  # type: ignore[operator]


@pytest.mark.parametrize(("path", "name"), CASES, ids=lambda value: value)
def test_the_client_reads_every_feature(client: OpenAI, path: str, name: str) -> None:
    change = FEATURES[path][name]
    whole = create(client, path, change)
    assert whole.model == "nano"
    assert whole.usage.total_tokens > 0
    if path == RESPONSES:
        assert isinstance(whole.output_text, str)
    else:
        assert whole.choices[0].finish_reason in ("stop", "length", "tool_calls")


@pytest.mark.parametrize("name", ["nothing", "tools", "effort high", "multi-byte", "history"])
def test_the_chat_helper_gets_to_the_end(client: OpenAI, name: str) -> None:
    body = {**BASE[CHAT], **FEATURES[CHAT][name], "max_tokens": 8}
    helper = client.chat.completions.stream(
        model="nano", messages=body.pop("messages"), stream_options={"include_usage": True},
        extra_body={**body, "ignore_eos": True},
    )  # fmt: skip
    with helper as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8


@pytest.mark.parametrize("name", ["nothing", "tools", "effort high", "multi-byte", "history"])
def test_the_responses_helper_gets_to_the_end(client: OpenAI, name: str) -> None:
    body = {**BASE[RESPONSES], **FEATURES[RESPONSES][name]}
    helper = client.responses.stream(model="nano", input=body.pop("input"), extra_body=body)
    with helper as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert final.usage is not None
    assert json.loads(final.model_dump_json())["id"].startswith("resp_")
