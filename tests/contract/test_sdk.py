"""The real openai client: every feature parses, whole and streamed; helpers get to the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI
from tests.contract.asking import BASE, CHAT, COMPLETIONS, MESSAGES, RESPONSES, TOGETHER, selected
from tests.contract.features import CASES, FEATURES
from tests.contract.shapes import FINISH, STOPS

NAMED = {CHAT: ("messages",), RESPONSES: (), COMPLETIONS: ("prompt",), MESSAGES: ("messages",)}


def create(
    client: OpenAI, anthropic_client: Anthropic, path: str, change: dict[str, Any], **more: Any
) -> Any:
    """Call the client's method; what its signature does not know goes into extra_body."""
    body = {**BASE[path], **change}
    cap = "max_output_tokens" if path == RESPONSES else "max_tokens"
    tokens = min(body.pop(cap) or 2, 2)  # reading is what is tested here
    if "max_completion_tokens" in body:
        body["max_completion_tokens"] = tokens
    named = {name: body.pop(name) for name in NAMED[path]}
    named[cap] = tokens
    method = {
        CHAT: client.chat.completions.create,
        RESPONSES: client.responses.create,
        COMPLETIONS: client.completions.create,
        MESSAGES: anthropic_client.messages.create,
    }[path]
    if path != MESSAGES:
        body.setdefault("seed", 5)
    return method(model="nano", **named, **more, extra_body=body)  # type: ignore[operator]


@pytest.fixture(scope="module")
def read(
    client: OpenAI, anthropic_client: Anthropic, request: pytest.FixtureRequest
) -> Iterator[Callable[[str, str, bool], Any]]:
    """What the client reads of a feature; all that is asked for is asked together, as batches."""

    def ask(path: str, name: str, stream: bool) -> Any:
        change = FEATURES[path][name]
        if not stream:
            return create(client, anthropic_client, path, change)
        with create(client, anthropic_client, path, change, stream=True) as events:
            return list(events)

    with ThreadPoolExecutor(TOGETHER) as pool:
        asked = {
            (*case, stream): pool.submit(ask, *case, stream)
            for case in selected(request, "path", "name")
            for stream in (False, True)
        }
        yield lambda *case: asked[case].result()


@pytest.mark.parametrize(("path", "name"), CASES, ids=lambda value: value)
def test_the_client_reads_every_feature(read: Callable[..., Any], path: str, name: str) -> None:
    whole = read(path, name, False)
    assert whole.model == "nano"
    if path == RESPONSES:
        assert isinstance(whole.output_text, str)
        assert whole.usage.total_tokens > 0
    elif path == MESSAGES:
        assert whole.stop_reason in STOPS
        assert whole.usage.output_tokens > 0
    else:
        assert whole.choices[0].finish_reason in FINISH
        assert whole.usage.total_tokens > 0


@pytest.mark.parametrize(("path", "name"), CASES, ids=lambda value: value)
def test_the_client_streams_every_feature(read: Callable[..., Any], path: str, name: str) -> None:
    events = read(path, name, True)
    if path == RESPONSES:
        assert events[-1].response.usage.total_tokens > 0
    elif path == MESSAGES:
        assert events[-2].delta.stop_reason in STOPS
        assert events[-2].usage.output_tokens > 0
    else:
        reasons = [choice.finish_reason for event in events for choice in event.choices]
        assert set(filter(None, reasons)) <= FINISH
        assert any(reasons)


@pytest.mark.parametrize("name", ["nothing", "tools", "thinking", "any tool", "multi-byte"])
def test_the_messages_helper_gets_to_the_end(anthropic_client: Anthropic, name: str) -> None:
    body = {**BASE[MESSAGES], **FEATURES[MESSAGES][name]}
    named = {key: body.pop(key) for key in ("messages", "max_tokens")}
    with anthropic_client.messages.stream(model="nano", **named, extra_body=body) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[-1] == "message_stop"
    assert final.stop_reason in STOPS
    assert final.usage.output_tokens > 0


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
