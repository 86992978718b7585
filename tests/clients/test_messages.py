"""Anthropic's API, with the real ``anthropic`` client."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest
from tests.clients.servers import ScriptedServer, ServerProcess, scripted_server

from gnomon.engine.models.loader import resolve_model
from gnomon.engine.scheduler.request import FinishReason

NS = "]<]minimax[>["
ASK: Any = [{"role": "user", "content": "Book it."}]
TOOLS: Any = [
    {
        "name": "book_room",
        "description": "Book.",
        "input_schema": {
            "type": "object",
            "properties": {"hotel": {"type": "string"}, "nights": {"type": "integer"}},
        },
    }
]
REPLY = (
    f"<mm:think>why</mm:think>Let me.{NS}<tool_call>\n"
    f'{NS}<invoke name="book_room">{NS}<hotel>Sole{NS}</hotel>{NS}<nights>3{NS}</nights>'
    f"{NS}</invoke>\n{NS}</tool_call>"
)


@pytest.fixture
def anthropic_client(scripted: ScriptedServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=scripted.url, api_key="unused", max_retries=0, timeout=30)


def make(client: anthropic.Anthropic, stream: bool, **change: Any) -> Any:
    request: Any = {"model": "scripted", "max_tokens": 500, "messages": ASK, **change}
    if not stream:
        return client.messages.create(**request)
    with client.messages.stream(**request) as events:
        return events.get_final_message()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_reply_has_thinking_text_and_calls(
    anthropic_client: anthropic.Anthropic, scripted: ScriptedServer, stream: bool
) -> None:
    scripted.say(REPLY, cached=2)
    found = make(anthropic_client, stream, tools=TOOLS, system="Be brief.")
    thinking, text, call = found.content
    assert (thinking.type, thinking.thinking) == ("thinking", "why")
    assert (text.type, text.text) == ("text", "Let me.")
    assert (call.type, call.name) == ("tool_use", "book_room")
    assert call.input == {"hotel": "Sole", "nights": 3}
    assert found.stop_reason == "tool_use"
    prompt = len(scripted.engine.prompts[-1])
    assert found.usage.input_tokens == prompt - 2
    assert found.usage.cache_read_input_tokens == 2
    assert found.usage.output_tokens == len(scripted.engine.script.token_ids)
    assert "Be brief." in scripted.prompt()
    if not stream:
        assert found._request_id.startswith("req_")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_whole_round_goes_back_into_the_prompt_once(
    anthropic_client: anthropic.Anthropic, scripted: ScriptedServer, stream: bool
) -> None:
    scripted.say(REPLY)
    first = make(anthropic_client, stream, tools=TOOLS)
    call = first.content[-1]
    history: Any = [
        *ASK,
        {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": call.id,
                 "content": [{"type": "text", "text": "booked"}]},
                {"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]  # fmt: skip
    scripted.say("Done.")
    assert make(anthropic_client, stream, messages=history, tools=TOOLS).content[0].text == "Done."
    prompt = scripted.prompt()
    for part in ("<mm:think>why</mm:think>Let me.", "booked", "And now?", f"{NS}<hotel>Sole"):
        assert prompt.count(part) == 1
    counted = anthropic_client.messages.count_tokens(
        model="scripted", messages=history, tools=TOOLS
    )
    assert counted.input_tokens == len(scripted.engine.prompts[-1])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("finish", "change", "reason", "sequence"),
    [
        (FinishReason.STOP, {}, "end_turn", None),
        (FinishReason.LENGTH, {}, "max_tokens", None),
        (FinishReason.STOP, {"stop_sequences": [" two"]}, "stop_sequence", " two"),
    ],
)
def test_why_a_reply_ended(
    anthropic_client: anthropic.Anthropic,
    scripted: ScriptedServer,
    stream: bool,
    finish: FinishReason,
    change: dict[str, Any],
    reason: str,
    sequence: str | None,
) -> None:
    scripted.say("one two three", finish=finish)
    found = make(anthropic_client, stream, **change)
    assert (found.stop_reason, found.stop_sequence) == (reason, sequence)
    assert found.content[0].text == ("one" if sequence else "one two three")


def turn(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({"messages": []}, "messages"),
    "a system turn": ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
    "an image": ({"messages": [turn("user", {"type": "image"})]}, "messages[0].content[0]"),
    "a prefilled answer": ({"messages": [*ASK, turn("assistant")]}, "messages[1]"),
    "an orphan result": ({"messages": [turn("user", RESULT)]},
                         "messages[0].content[0].tool_use_id"),
    "a call without a result": ({"messages": [*ASK, turn("assistant", USE), *ASK]}, "messages[2]"),
    "input that is text": (
        {"messages": [*ASK, turn("assistant", {**USE, "input": "{}"}), turn("user", RESULT)]},
        "messages[1].content[0].input",
    ),
    "redacted thinking": (
        {"messages": [*ASK, turn("assistant", {"type": "redacted_thinking", "data": "x"}), *ASK]},
        "messages[1].content[0]",
    ),
    "a vendor's tool": ({"tools": [{"type": "bash_20250124", "name": "b"}]}, "tools[0].type"),
    "a schema": ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]},
                 "tools[0].input_schema"),
    "a choice": ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
    "a choice of nothing": ({"tool_choice": {"type": "any"}}, "tool_choice"),
    "a thinking mode": ({"thinking": {"type": "loud"}}, "thinking.type"),
    "max_tokens": ({"max_tokens": 0}, "max_tokens"),
    "max_tokens beyond the context": ({"max_tokens": 99999}, "max_tokens"),
    "an unknown field": ({"tempreature": 1}, "tempreature"),
    "a container": ({"container": "x"}, "container"),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("change", "param"), WRONG.values(), ids=WRONG)
def test_a_wrong_request_is_refused_by_name(
    scripted: ScriptedServer, change: dict[str, Any], param: str, stream: bool
) -> None:
    scripted.say("x")
    body = {"model": "scripted", "max_tokens": 5, "messages": ASK, "stream": stream, **change}
    answer = httpx.post(f"{scripted.base_url}/messages", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert answer.json()["error"]["param"] == param


def test_the_client_raises_its_own_errors(anthropic_client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        make(anthropic_client, False, model="anthropic_client-9")
    with pytest.raises(anthropic.BadRequestError):
        make(anthropic_client, True, messages=[])
    with scripted_server(resolve_model("nano"), api_key="secret") as server:
        locked = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError):
            make(locked, False)
        server.say("hi")
        right = anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0)
        assert make(right, False).content[0].text == "hi"


@pytest.mark.parametrize("mode", ["enabled", "disabled", "adaptive"])
def test_thinking_is_the_template_s_mode(
    anthropic_client: anthropic.Anthropic, scripted: ScriptedServer, mode: str
) -> None:
    scripted.say("x")
    make(anthropic_client, False, thinking={"type": mode, "budget_tokens": 1024})
    tail = scripted.prompt()[-12:]
    assert tail.endswith("</mm:think>") == (mode == "disabled")
    assert tail.endswith("<mm:think>") == (mode == "enabled")


def test_a_call_can_be_demanded_of_the_real_model(nano: ServerProcess) -> None:
    client = anthropic.Anthropic(base_url=nano.url, api_key="x", max_retries=0, timeout=120)
    for choice in ({"type": "any"}, {"type": "tool", "name": "book_room"}):
        found = make(
            client, True, model="nano", tools=TOOLS, tool_choice=choice, max_tokens=1000,
            thinking={"type": "disabled"},
        )  # fmt: skip
        assert [block.name for block in found.content if block.type == "tool_use"]
