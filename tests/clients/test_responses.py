"""The Responses API through the real client, over a scripted engine."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from tests.clients.offers import ARGUMENTS, CALLS, FLAT_TOOLS
from tests.clients.servers import ScriptedServer, ServerProcess
from tests.parsers.replies import NS

from gnomon.engine.errors import EngineDead
from gnomon.engine.scheduler.request import FinishReason


def respond(told: OpenAI, **fields: Any) -> Any:
    return told.responses.create(**{"model": "scripted", "input": "Book it.", **fields})


def test_responses_return_reasoning_text_and_calls(told: OpenAI, scripted: ScriptedServer) -> None:
    scripted.say("why</mm:think>Sure.\n" + CALLS)
    reply = respond(told, tools=FLAT_TOOLS, reasoning={"effort": "high"})
    assert reply.status == "completed"
    assert [i.type for i in reply.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert reply.output[0].content[0].text == "why"
    assert reply.output_text == "Sure."
    assert [json.loads(i.arguments) for i in reply.output[2:]] == ARGUMENTS
    assert all(i.status == "completed" for i in reply.output)
    assert reply.usage.input_tokens_details.cached_tokens == 0
    assert reply.usage.output_tokens_details.reasoning_tokens > 0
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens


def test_the_responses_stream_has_every_event_in_order(
    told: OpenAI, scripted: ScriptedServer
) -> None:
    scripted.say("why</mm:think>Sure." + CALLS)
    with told.responses.stream(
        model="scripted", input="x", tools=FLAT_TOOLS, reasoning={"effort": "high"}
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    squeezed = [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]
    text = ["output_item.added", "content_part.added", None, None, "content_part.done",
            "output_item.done"]  # fmt: skip
    reasoning = [k or f"reasoning_text.{'delta' if at == 2 else 'done'}"
                 for at, k in enumerate(text)]  # fmt: skip
    message = [k or f"output_text.{'delta' if at == 2 else 'done'}" for at, k in enumerate(text)]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
            "output_item.done"]  # fmt: skip
    expected = ["created", "in_progress", *reasoning, *message, *call, *call, "completed"]
    assert squeezed == [f"response.{kind}" for kind in expected]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.output_text == "Sure."
    assert [json.loads(i.arguments) for i in final.output if i.type == "function_call"] == ARGUMENTS


def test_responses_events_are_named(scripted: ScriptedServer) -> None:
    scripted.say("hi")
    body = {"model": "scripted", "input": "x", "stream": True}
    text = httpx.post(f"{scripted.base_url}/responses", json=body).text
    for message in text.strip().split("\n\n"):
        name, line = message.split("\n")
        told = json.loads(line.removeprefix("data: "))
        assert name == f"event: {told['type']}"
        if "response" in told:
            assert told["response"]["id"].startswith("resp_")


def test_a_truncated_response_is_incomplete(told: OpenAI, scripted: ScriptedServer) -> None:
    scripted.say("and so on", finish=FinishReason.LENGTH)
    reply = respond(told, max_output_tokens=50)
    assert reply.status == "incomplete"
    assert reply.incomplete_details.reason == "max_output_tokens"
    events = list(respond(told, stream=True))
    assert events[-1].type == "response.completed"
    assert events[-1].response.status == "incomplete"
    assert events[-1].response.usage.output_tokens > 0
    with told.responses.stream(model="scripted", input="x") as stream:
        assert stream.get_final_response().status == "incomplete"


def test_an_empty_response_has_an_empty_message(told: OpenAI, scripted: ScriptedServer) -> None:
    scripted.say("")
    reply = respond(told)
    assert reply.status == "completed"
    assert [item.type for item in reply.output] == ["message"]
    assert reply.output_text == ""
    with told.responses.stream(model="scripted", input="x") as stream:
        assert stream.get_final_response().output_text == ""


def test_responses_history_goes_back_into_the_prompt(
    told: OpenAI, scripted: ScriptedServer
) -> None:
    scripted.say("why</mm:think>Sure." + CALLS)
    first = respond(told, tools=FLAT_TOOLS, reasoning={"effort": "high"}, store=False)
    outputs = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "done"}
        for item in first.output
        if item.type == "function_call"
    ]
    history = [item.model_dump(exclude_none=True) for item in first.output]
    scripted.say("ok")
    respond(
        told,
        instructions="Be brief.",
        input=[
            {"role": "developer", "content": "In English."},
            {"role": "user", "content": [{"type": "input_text", "text": "Book it."}]},
            *history,
            *outputs,
        ],
        tools=FLAT_TOOLS,
    )
    prompt = scripted.prompt()
    assert "]~b]system\nBe brief." in prompt
    assert "]~b]developer\nIn English." in prompt
    assert prompt.count("]~b]ai\n") == 2
    assert "<mm:think>why</mm:think>Sure.\n" in prompt
    assert f'{NS}<invoke name="now">' in prompt
    assert prompt.count("<response>done</response>") == 2


def test_a_failing_responses_stream_says_so(told: OpenAI, scripted: ScriptedServer) -> None:
    scripted.say("half a", fail=EngineDead("killed"))
    stream = respond(told, stream=True)
    kinds: list[str] = []
    with pytest.raises(openai.APIError, match="killed"):
        kinds.extend(event.type for event in stream)
    assert kinds[-1] == "response.failed"


def test_a_real_server_answers_responses(client: OpenAI) -> None:
    asked: Any = {"model": "nano", "input": "Say hello.", "temperature": 0, "max_output_tokens": 12}
    reply = client.responses.create(**asked, instructions="Be brief.", store=False)
    assert reply.status == "incomplete"
    assert reply.usage is not None
    assert reply.usage.output_tokens == 12
    text = reply.output_text
    stop = {"stop": [text[len(text) // 2]]}
    with client.responses.stream(**asked, instructions="Be brief.", extra_body=stop) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert text.startswith(final.output_text)
    assert final.output_text == text[: text.index(stop["stop"][0])]


def test_the_real_server_streams_named_events(nano: ServerProcess) -> None:
    body = {"model": "nano", "input": "x", "stream": True, "max_output_tokens": 4}
    answer = httpx.post(f"{nano.base_url}/responses", json=body, timeout=60)
    assert answer.text.startswith("event: response.created\ndata: ")
    assert "event: response.completed\n" in answer.text
