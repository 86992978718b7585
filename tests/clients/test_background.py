"""Responses in the background, their events again, their items; long conversations; reasoning."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from tests.clients.servers import ScriptedServer, scripted_server

from gnomon.engine.errors import EngineDead
from gnomon.engine.models.loader import resolve_model


def until(true: Callable[[], Any], timeout_s: float = 20) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found
    return found


def start(told: OpenAI, **fields: Any) -> Any:
    return told.responses.create(**{
        "model": "scripted", "input": "x", "background": True, **fields
    })  # fmt: skip


def ended(told: OpenAI, name: str) -> Any:
    def poll() -> Any:
        found = told.responses.retrieve(name)
        return found if found.status not in ("queued", "in_progress") else None

    return until(poll)


def test_a_response_in_the_background_is_polled_to_its_end(
    told: OpenAI, scripted: ScriptedServer
) -> None:
    scripted.say("one two three", delay_s=0.02)
    first = start(told)
    assert (first.status, first.background, first.output) == ("queued", True, [])
    last = ended(told, first.id)
    assert (last.id, last.status, last.output_text) == (first.id, "completed", "one two three")
    assert last.usage.output_tokens == len(scripted.engine.script.token_ids)
    until(lambda: scripted.served.gate.open == 0)
    scripted.say("so")
    again = told.responses.create(model="scripted", input="y", previous_response_id=first.id)
    assert again.output_text == "so"
    assert "one two three" in scripted.prompt()


def test_it_goes_on_when_its_client_leaves_and_is_read_again_from_any_event(
    told: OpenAI, scripted: ScriptedServer
) -> None:
    scripted.say("one two three four five six", delay_s=0.02)
    seen = []
    with start(told, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
    assert [e.type for e in seen[:3]] == [
        "response.created", "response.queued", "response.in_progress",
    ]  # fmt: skip
    name = seen[0].response.id
    after = seen[-1].sequence_number
    rest = list(told.responses.retrieve(name, stream=True, starting_after=after))
    everything = list(told.responses.retrieve(name, stream=True))
    numbers = [event.sequence_number for event in everything]
    assert numbers == list(range(len(numbers)))
    assert [e.to_dict() for e in [*seen, *rest]] == [e.to_dict() for e in everything]
    assert everything[-1].type == "response.completed"
    assert everything[-1].response.output_text == "one two three four five six"
    assert list(told.responses.retrieve(name, stream=True, starting_after=numbers[-1])) == []


def test_it_is_cancelled_and_cannot_be_continued_or_deleted_before(
    told: OpenAI, scripted: ScriptedServer
) -> None:
    scripted.say("so far", finish=None)
    name = start(told).id
    until(lambda: told.responses.retrieve(name).output_text == "so far")
    items = told.responses.input_items.list(name).data
    assert items[0].content[0].text == "x"
    for call in (
        lambda: told.responses.delete(name),
        lambda: told.responses.create(model="scripted", input="y", previous_response_id=name),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            call()
        assert caught.value.code == "response_in_progress"
    cancelled = told.responses.cancel(name)
    assert cancelled.status == "cancelled"
    assert {getattr(item, "status", None) for item in cancelled.output} <= {"incomplete"}
    last = ended(told, name)
    assert (last.status, last.output_text) == ("cancelled", "so far")
    assert last.usage.output_tokens > 0
    assert told.responses.cancel(name).status == "cancelled"
    told.responses.delete(name)
    until(lambda: scripted.engine.aborted)


def test_its_failure_is_what_it_ends_with(told: OpenAI, scripted: ScriptedServer) -> None:
    scripted.say("a", fail=EngineDead("gone"))
    stream = start(told, stream=True)
    events = iter(stream)
    name = next(events).response.id
    with pytest.raises(openai.APIError, match="gone"):
        list(events)
    last = ended(told, name)
    assert last.status == "failed"
    assert "gone" in last.error.message


def test_it_counts_as_an_open_request_after_its_answer() -> None:
    with scripted_server(resolve_model("nano"), max_open_requests=1) as server:
        client = OpenAI(base_url=server.base_url, api_key="x", max_retries=0)
        server.say("a", finish=None)
        name = start(client).id
        with pytest.raises(openai.RateLimitError):
            client.responses.create(model="scripted", input="x")
        client.responses.cancel(name)
        until(lambda: server.served.gate.open == 0)


def test_its_events_belong_to_its_api_key(told: OpenAI, scripted: ScriptedServer) -> None:
    scripted.say("x")
    name = start(told).id
    ended(told, name)
    other = OpenAI(base_url=scripted.base_url, api_key="other", max_retries=0)
    for call in (
        lambda: other.responses.retrieve(name, stream=True),
        lambda: other.responses.input_items.list(name),
        lambda: other.responses.cancel(name),
    ):
        with pytest.raises(openai.NotFoundError):
            call()


def test_input_items_come_in_pages(told: OpenAI, scripted: ScriptedServer) -> None:
    scripted.say("b")
    first = told.responses.create(model="scripted", input="a")
    second = told.responses.create(
        model="scripted", input=[{"role": "user", "content": "c"}], previous_response_id=first.id
    )
    pages = told.responses.input_items.list(second.id, limit=1, order="asc")
    texts = [item.content[0].text for item in pages]  # the client asks for every page
    assert texts == ["a", "b", "c"]
    newest = told.responses.input_items.list(second.id, limit=2)
    assert [item.content[0].text for item in newest.data] == ["c", "b"]
    assert newest.has_more
    after = told.responses.input_items.list(second.id, after=newest.data[-1].id)
    assert [item.content[0].text for item in after.data] == ["a"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=yes", "stream"), ("stream=true", "stream"), ("starting_after=1", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"), ("speed=1", "speed"),
        ("include[]=reasoning.encrypted_content", "include"), ("stream=true&stream=true", "stream"),
    ],
)  # fmt: skip
def test_a_wrong_query_is_refused(
    told: OpenAI, scripted: ScriptedServer, query: str, param: str
) -> None:
    scripted.say("x")
    name = told.responses.create(model="scripted", input="x").id
    headers = {"authorization": "Bearer unused"}
    answer = httpx.get(f"{scripted.base_url}/responses/{name}?{query}", headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("after=x", "after")],
)
def test_a_wrong_page_is_refused(
    told: OpenAI, scripted: ScriptedServer, query: str, param: str
) -> None:
    scripted.say("x")
    name = told.responses.create(model="scripted", input="x").id
    headers = {"authorization": "Bearer unused"}
    url = f"{scripted.base_url}/responses/{name}/input_items?{query}"
    answer = httpx.get(url, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_client_that_stores_nothing_carries_the_reasoning(
    told: OpenAI, scripted: ScriptedServer
) -> None:
    scripted.say("the secret thought</mm:think>Sure.")
    ask: Any = {
        "model": "scripted", "store": False, "reasoning": {"effort": "high", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
    }  # fmt: skip
    first = told.responses.create(input="one", **ask)
    with told.responses.stream(input="one", **ask) as stream:
        streamed = stream.get_final_response()
    for found in (first, streamed):
        item = found.output[0]
        assert item.type == "reasoning"
        carried = {"type": "reasoning", "summary": [], "encrypted_content": item.encrypted_content}
        history: Any = [
            {"role": "user", "content": "one"}, carried,
            {"role": "assistant", "content": "Sure."}, {"role": "user", "content": "two"},
        ]  # fmt: skip
        told.responses.create(input=history, **ask)
        assert scripted.prompt().count("the secret thought") == 1
        history[1] = {**carried, "content": [{"type": "reasoning_text", "text": "else"}]}
        with pytest.raises(openai.BadRequestError, match="different reasoning"):
            told.responses.create(input=history, **ask)
        history[1] = {**carried, "encrypted_content": item.encrypted_content[:-4] + "AAA="}
        with pytest.raises(openai.BadRequestError) as caught:
            told.responses.create(input=history, **ask)
        assert (caught.value.code, caught.value.param) == (
            "invalid_encrypted_content", "input[1].encrypted_content",
        )  # fmt: skip
        history[1] = {**history[1], "content": [{"type": "reasoning_text", "text": "in clear"}]}
        told.responses.create(input=history, **ask)
        assert "in clear" in scripted.prompt()


def turns(count: int) -> list[dict[str, Any]]:
    said = [("user", "question"), ("assistant", "answer")] * count
    return [
        {"role": role, "content": f"{text} {at // 2}. " + "word " * 150}
        for at, (role, text) in enumerate(said)
    ]


def test_the_oldest_turns_are_left_out_until_the_rest_fits(
    told: OpenAI, scripted: ScriptedServer
) -> None:
    scripted.say("x")
    ask: Any = {
        "model": "scripted", "instructions": "Be brief.",
        "input": [*turns(20), {"role": "user", "content": "the last"}],
    }  # fmt: skip
    with pytest.raises(openai.BadRequestError) as caught:
        told.responses.create(**ask)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    found = told.responses.create(**ask, truncation="auto", max_output_tokens=500)
    prompt = scripted.prompt()
    dropped = found.to_dict()["dropped_input_items"]
    assert isinstance(dropped, int)
    assert 0 < dropped < 40
    assert dropped % 2 == 0
    gone = dropped // 2
    assert f"question {gone - 1}." not in prompt
    assert f"answer {gone - 1}." not in prompt
    for part in ("Be brief.", f"question {gone}.", f"answer {gone}.", "answer 19.", "the last"):
        assert part in prompt
    size = len(scripted.engine.prompts[-1])
    assert size + 500 <= 4096
    assert size + 500 + size // (20 - gone) > 4096  # one turn more would not fit
    assert found.truncation == "auto"
    assert len(told.responses.input_items.list(found.id, limit=100).data) == 41


def test_what_the_user_said_last_is_never_left_out(told: OpenAI, scripted: ScriptedServer) -> None:
    scripted.say("x")
    long = {"role": "user", "content": "word " * 5000}
    with pytest.raises(openai.BadRequestError) as caught:
        told.responses.create(model="scripted", input=[*turns(2), long], truncation="auto")
    assert caught.value.code == "context_length_exceeded"
    short = told.responses.create(model="scripted", input="x", truncation="auto")
    assert short.to_dict()["dropped_input_items"] == 0
