"""Stored, continued, cancelled and background responses, tokens and prompts: real clients."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI
from tests.contract.anthropic_api import ANTHROPIC_FEATURES
from tests.contract.asking import Asker
from tests.contract.features import CHAT_FEATURES, FLAT_TOOLS, SEALED, TOOLS

STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
ASK: dict[str, Any] = {"model": "nano", "input": "Say hello.", "max_output_tokens": 4}


def respond(client: OpenAI, stream: bool, **fields: Any) -> Any:
    """A finished response."""
    made = client.responses.create(**{**ASK, **fields}, stream=stream)
    return list(made)[-1].response if stream else made


def prompt(asker: Asker, body: dict[str, Any]) -> str:
    """The prompt of a conversation, as text."""
    ids = asker.post("/tokenize", {"model": "nano", **body}).json()["tokens"]
    return str(asker.post("/detokenize", {"tokens": ids}).json()["prompt"])


@STREAMED
def test_a_stored_response_is_the_one_that_was_answered(client: OpenAI, stream: bool) -> None:
    made = respond(client, stream, metadata={"a": "b"}, instructions="Be brief.")
    found = client.responses.retrieve(made.id)
    assert found.to_dict() == made.to_dict()
    assert found.metadata == {"a": "b"}
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.retrieve(made.id)
    assert caught.value.code == "response_not_found"


@STREAMED
def test_a_response_continues_another_as_its_history_would(client: OpenAI, stream: bool) -> None:
    first = respond(client, stream)
    second = respond(client, stream, input="And now?", previous_response_id=first.id)
    items: Any = [
        {"role": "user", "content": ASK["input"]},
        *(item.to_dict() for item in first.output),
        {"role": "user", "content": "And now?"},
    ]
    alone = respond(client, stream, input=items)
    assert second.usage.input_tokens == alone.usage.input_tokens
    assert second.previous_response_id == first.id


@STREAMED
def test_what_is_not_stored_cannot_be_continued(client: OpenAI, stream: bool) -> None:
    made = respond(client, stream, store=False)
    with pytest.raises(openai.NotFoundError) as caught:
        respond(client, stream, previous_response_id=made.id)
    assert caught.value.param == "previous_response_id"


def test_input_items_have_ids_and_pages(client: OpenAI) -> None:
    made = respond(client, False, input=[{"role": "user", "content": t} for t in "abc"])
    listed = list(client.responses.input_items.list(made.id, limit=2, order="asc"))
    assert [item.content[0].text for item in listed] == ["a", "b", "c"]  # type: ignore[union-attr]
    assert len({item.id for item in listed}) == 3


def ended(client: OpenAI, name: str) -> Any:
    deadline = time.monotonic() + 60
    while (found := client.responses.retrieve(name)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_a_response_in_the_background_is_polled(client: OpenAI) -> None:
    made = client.responses.create(**ASK, background=True, extra_body={"seed": 5})
    assert made.status == "queued"
    found = ended(client, made.id)
    alone = client.responses.create(**ASK, extra_body={"seed": 5})
    assert (found.status, found.output_text) == (alone.status, alone.output_text)
    assert found.usage.output_tokens == alone.usage.output_tokens  # type: ignore[union-attr]


def test_a_stream_of_the_background_is_resumed(client: OpenAI) -> None:
    with client.responses.create(**ASK, background=True, stream=True) as stream:
        first = next(iter(stream))
    rest = list(client.responses.retrieve(first.response.id, stream=True, starting_after=0))
    assert [event.sequence_number for event in rest] == list(range(1, len(rest) + 1))
    assert rest[-1].response.to_dict() == ended(client, first.response.id).to_dict()


@STREAMED
def test_a_running_response_is_cancelled(client: OpenAI, stream: bool) -> None:
    long = {**ASK, "max_output_tokens": 1900}
    made = client.responses.create(
        **long, background=True, stream=stream, extra_body={"ignore_eos": True}
    )
    name = next(iter(made)).response.id if stream else made.id
    client.responses.cancel(name)
    found = ended(client, name)
    assert found.status == "cancelled"
    assert found.usage.output_tokens < 1900
    assert client.responses.cancel(name).status == "cancelled"


@pytest.mark.parametrize("text", ["Hello", "", "Ünïcode 漢字 😀", "]~b]user <mm:think>", " \n"])
def test_text_is_tokenised_and_back(asker: Asker, text: str) -> None:
    found = asker.post("/tokenize", {"prompt": text, "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert asker.post("/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": text}


@pytest.mark.parametrize(
    "name",
    ["system", "tools", "history with thinking", "history with a call", "thinking"],
)
def test_counted_tokens_are_those_of_the_message(anthropic_client: Anthropic, name: str) -> None:
    body: Any = {"messages": [{"role": "user", "content": "Hi"}], **ANTHROPIC_FEATURES[name]}
    counted = anthropic_client.messages.count_tokens(model="nano", **body)
    made = anthropic_client.messages.create(model="nano", max_tokens=1, **body)
    usage = made.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


SPELLINGS = [
    "history with reasoning_content", "history with reasoning",
    "history with reasoning in the content", "history with reasoning in both",
]  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_reasoning_goes_back_once_however_it_is_spelled(asker: Asker, name: str) -> None:
    messages = CHAT_FEATURES[name]["messages"]
    rendered = prompt(asker, {"messages": messages})
    assert rendered.count("They greet.") == 1
    assert rendered == prompt(asker, {"messages": CHAT_FEATURES[SPELLINGS[0]]["messages"]})


def test_sealed_reasoning_goes_back_as_that_in_clear(client: OpenAI) -> None:
    clear = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "They greet."}]}
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": SEALED}
    counts = []
    for carried in (clear, sealed):
        said = [carried, {"role": "assistant", "content": "Hello."}]
        history: Any = [{"role": "user", "content": "Hi"}, *said, {"role": "user", "content": "So"}]
        counts.append(respond(client, False, input=history).usage.input_tokens)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("names", ["zeta alpha mid", "a b c", "c b a"])
def test_a_schema_keeps_its_key_order_in_the_prompt(asker: Asker, names: str) -> None:
    order = names.split()
    schema = {
        "type": "object",
        "properties": {name: {"type": "string", "description": f"is {name}"} for name in order},
        "required": order[:1],
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    rendered = prompt(asker, {"messages": [{"role": "user", "content": "x"}], "tools": [tool]})
    places = [rendered.index(f"is {name}") for name in order]
    assert places == sorted(places)


@STREAMED
def test_a_bias_rules_and_a_stop_string_ends(client: OpenAI, asker: Asker, stream: bool) -> None:
    (token,) = asker.post("/tokenize", {"prompt": "a"}).json()["tokens"]
    ask: Any = {"model": "nano", "prompt": "x", "max_tokens": 6, "temperature": 0,
                "logit_bias": {str(token): 100}}  # fmt: skip
    for change, text, reason in (
        ({}, "aaaaaa", "length"), ({"stop": "aaa"}, "", "stop"),
        ({"extra_body": {"stop_token_ids": [token], "min_tokens": 0}}, "", "stop"),
    ):  # fmt: skip
        made = client.completions.create(**{**ask, **change}, stream=stream)
        parts = [c for part in made for c in part.choices] if stream else made.choices
        assert "".join(part.text for part in parts) == text
        assert parts[-1].finish_reason == reason


def test_models_are_listed_and_found(client: OpenAI, anthropic_client: Anthropic) -> None:
    (listed,) = client.models.list().data
    assert listed.id == "nano"
    assert client.models.retrieve("nano").to_dict() == listed.to_dict()
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_tools_of_both_spellings_make_one_prompt(client: OpenAI) -> None:
    chat = client.chat.completions.create(
        model="nano", messages=[{"role": "user", "content": "x"}], max_tokens=1,
        tools=TOOLS,  # type: ignore[arg-type]
    )  # fmt: skip
    response = respond(client, False, input="x", tools=FLAT_TOOLS, max_output_tokens=1)
    assert chat.usage is not None
    assert chat.usage.prompt_tokens == response.usage.input_tokens
