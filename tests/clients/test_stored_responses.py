"""Responses that are kept, continued, fetched, deleted and cancelled; tokens of texts and chats."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from tests.clients.servers import ScriptedServer, scripted_server

from gnomon.engine.models.loader import resolve_model
from gnomon.engine.scheduler.request import FinishReason

TOOL: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}}
NS = "]<]minimax[>["


def test_a_response_continues_another(told: OpenAI, scripted: ScriptedServer) -> None:
    scripted.say(f'<mm:think>why</mm:think>Let me.{NS}<tool_call>{NS}<invoke name="f">{NS}</invoke>'
                 f"{NS}</tool_call>")  # fmt: skip
    first = told.responses.create(model="scripted", input="one", tools=[TOOL])
    assert first.store is True
    call = first.output[-1]
    assert call.type == "function_call"
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "four"}
    scripted.say("done")
    second = told.responses.create(
        model="scripted", input=[output], previous_response_id=first.id, tools=[TOOL],
        instructions="Be brief.",
    )  # fmt: skip
    assert second.previous_response_id == first.id
    prompt = scripted.prompt()
    for part in (
        "one",
        "<mm:think>why</mm:think>Let me.",
        '<invoke name="f">',
        "four",
        "Be brief.",
    ):
        assert prompt.count(part) >= 1
    third = told.responses.create(model="scripted", input="more", previous_response_id=second.id)
    assert "done" in scripted.prompt()
    assert "Be brief." not in scripted.prompt()
    assert told.responses.retrieve(third.id).output_text == "done"


def test_a_streamed_response_is_kept_too(told: OpenAI, scripted: ScriptedServer) -> None:
    scripted.say("streamed")
    with told.responses.stream(model="scripted", input="x") as stream:
        found = stream.get_final_response()
    assert told.responses.retrieve(found.id).output_text == "streamed"


def test_what_is_not_stored_deleted_or_another_s_is_not_found(
    told: OpenAI, scripted: ScriptedServer
) -> None:
    scripted.say("x")
    other = OpenAI(base_url=scripted.base_url, api_key="other", max_retries=0)
    gone = told.responses.create(model="scripted", input="x", store=False)
    assert gone.store is False
    deleted = told.responses.create(model="scripted", input="x")
    told.responses.delete(deleted.id)
    mine = told.responses.create(model="scripted", input="x")
    for client, response_id in ((told, gone.id), (told, deleted.id), (other, mine.id)):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response_id)
        with pytest.raises(openai.NotFoundError) as caught:
            client.responses.create(model="scripted", input="x", previous_response_id=response_id)
        assert caught.value.param == "previous_response_id"


def test_the_oldest_make_room() -> None:
    with scripted_server(resolve_model("nano"), max_stored_responses=2) as server:
        client = OpenAI(base_url=server.base_url, api_key="x", max_retries=0)
        server.say("x")
        made = [client.responses.create(model="scripted", input="x").id for _ in range(3)]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made[0])
        assert client.responses.retrieve(made[2]).id == made[2]


def test_a_wrong_item_is_named_in_the_new_input(told: OpenAI, scripted: ScriptedServer) -> None:
    scripted.say("x")
    first = told.responses.create(model="scripted", input="x")
    wrong: Any = [{"type": "function_call_output", "call_id": "c", "output": "x"}]
    with pytest.raises(openai.BadRequestError) as caught:
        told.responses.create(model="scripted", input=wrong, previous_response_id=first.id)
    assert caught.value.param == "input[0].call_id"


def test_a_running_response_is_cancelled(told: OpenAI, scripted: ScriptedServer) -> None:
    scripted.say("so far", finish=None)
    seen: list[Any] = []

    def read() -> None:
        with told.responses.stream(model="scripted", input="x") as stream:
            seen.extend(stream)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while len(seen) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    response_id = seen[0].response.id
    assert told.responses.retrieve(response_id).status == "in_progress"
    assert told.responses.cancel(response_id).status == "cancelled"
    thread.join(timeout=20)
    last = seen[-1].response
    assert (last.status, last.output_text) == ("cancelled", "so far")
    assert last.usage.output_tokens > 0
    assert scripted.engine.aborted
    assert told.responses.cancel(response_id).status == "cancelled"
    scripted.say("x")
    finished = told.responses.create(model="scripted", input="x")
    with pytest.raises(openai.BadRequestError, match="finished"):
        told.responses.cancel(finished.id)
    with pytest.raises(openai.NotFoundError):
        told.responses.cancel("resp_none")


def test_text_is_tokenised_and_back(scripted: ScriptedServer) -> None:
    text = "Grüße ]~b]user <mm:think>"
    found = httpx.post(
        f"{scripted.url}/tokenize",
        json={"model": "scripted", "prompt": text, "return_token_strs": True},
    ).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == 4096
    back = httpx.post(f"{scripted.url}/detokenize", json={"tokens": found["tokens"]}).json()
    assert back == {"prompt": text}


def test_a_conversation_is_tokenised_as_chat_does(told: OpenAI, scripted: ScriptedServer) -> None:
    chat: Any = {"messages": [{"role": "user", "content": "x [e~[ y"}]}
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    scripted.say("x")
    told.chat.completions.create(model="scripted", **chat, tools=tools)
    found = httpx.post(f"{scripted.url}/tokenize", json={**chat, "tools": tools}).json()
    assert found["tokens"] == scripted.engine.prompts[-1]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("tokenize", {}, 400, "prompt"),
        ("tokenize", {"prompt": "x", "messages": []}, 400, "prompt"),
        ("tokenize", {"prompt": "x", "add_special_tokens": True}, 400, "add_special_tokens"),
        ("tokenize", {"prompt": "x", "model": "gpt-9"}, 404, "model"),
        ("tokenize", {"messages": []}, 400, "messages"),
        ("detokenize", {"tokens": [10**6]}, 400, "tokens"),
        ("detokenize", {"tokens": "x"}, 400, "tokens"),
        ("detokenize", {"tokens": [1], "speed": 1}, 400, "speed"),
    ],
)
def test_wrong_token_requests_are_refused(
    scripted: ScriptedServer, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    answer = httpx.post(f"{scripted.url}/{path}", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param


def test_a_stop_string_still_ends_a_reply(told: OpenAI, scripted: ScriptedServer) -> None:
    scripted.say("one two three", finish=FinishReason.LENGTH)
    found = told.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "x"}], stop=[" three", " two"]
    )
    assert found.choices[0].message.content == "one"
    assert found.choices[0].finish_reason == "stop"
