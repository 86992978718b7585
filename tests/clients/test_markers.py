"""No text of a client becomes a marker, wherever it stands, at any endpoint."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clients.servers import ScriptedServer

Body = dict[str, Any]
CALL = "call_1"


def chat(*messages: Body, **fields: Any) -> Body:
    return {"messages": [{"role": "user", "content": "x"}, *messages], **fields}


def schema(text: str) -> Body:
    return {
        "type": "object",
        "description": text,
        "properties": {
            text: {"type": "string", "enum": [text], "default": text},
            "a": {"anyOf": [{"type": "null", "title": text}]},
        },
        "required": [text],
    }


def chat_call(name: str, arguments: Any, result: Any) -> Body:
    function = {"name": name, "arguments": arguments}
    calls = [{"id": CALL, "type": "function", "function": function}]
    return chat(
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": CALL, "content": result},
    )


def function(text: str) -> Body:
    return {"name": "f", "description": text, "parameters": schema(text)}


def items(*items: Body, **fields: Any) -> Body:
    return {"input": [{"role": "user", "content": "x"}, *items], **fields}


def item_call(name: str, arguments: str, output: Any) -> Body:
    call = {"type": "function_call", "call_id": CALL, "name": name, "arguments": arguments}
    return items(call, {"type": "function_call_output", "call_id": CALL, "output": output})


def messages_body(*messages: Body, **fields: Any) -> Body:
    first = {"role": "user", "content": fields.pop("first", "x")}
    return {"messages": [first, *messages], "max_tokens": 2, **fields}


def messages_call(name: str, given: Body, result: Any) -> Body:
    block = {"type": "tool_use", "id": CALL, "name": name, "input": given}
    answer = {"type": "tool_result", "tool_use_id": CALL, "content": result}
    return messages_body(
        {"role": "assistant", "content": [block]}, {"role": "user", "content": [answer]}
    )


def quoted(text: str) -> str:
    return json.dumps({text: [text]})


def part(kind: str, text: str) -> list[Body]:
    return [{"type": kind, "text": text}]


PLACES: dict[str, dict[str, Callable[[str], Body]]] = {
    "/v1/chat/completions": {
        "user": lambda t: chat({"role": "user", "content": t}),
        "user's part": lambda t: chat({"role": "user", "content": part("text", t)}),
        "user's name": lambda t: chat({"role": "user", "content": "x", "name": t}),
        "system": lambda t: {"messages": [{"role": "system", "content": t}, *chat()["messages"]]},
        "developer": lambda t: chat({"role": "developer", "content": t}),
        "reasoning": lambda t: chat(
            {"role": "assistant", "content": "y", "reasoning_content": "z" + t}
        ),
        "call's name": lambda t: chat_call(t, "{}", "x"),
        "call's arguments": lambda t: chat_call("f", quoted(t), "x"),
        "tool's result": lambda t: chat_call("f", "{}", t),
        "tool's part": lambda t: chat_call("f", "{}", part("text", t)),
        "tool": lambda t: chat(tools=[{"type": "function", "function": function(t)}]),
    },
    "/v1/responses": {
        "text": lambda t: {"input": t},
        "instructions": lambda t: {"input": "x", "instructions": t},
        "user": lambda t: items({"role": "user", "content": part("input_text", t)}),
        "developer": lambda t: items({"role": "developer", "content": t}),
        "reasoning": lambda t: items(
            {"type": "reasoning", "content": part("reasoning_text", "z" + t)},
            {"role": "assistant", "content": "y"},
        ),
        "call's arguments": lambda t: item_call("f", quoted(t), "x"),
        "call's name": lambda t: item_call(t, "{}", "x"),
        "output": lambda t: item_call("f", "{}", t),
        "output's part": lambda t: item_call("f", "{}", part("input_text", t)),
        "tool": lambda t: items(tools=[{"type": "function", **function(t)}]),
    },
    "/v1/messages": {
        "user": lambda t: messages_body(first=t),
        "user's block": lambda t: messages_body(first=part("text", t)),
        "system": lambda t: messages_body(system=t),
        "system's block": lambda t: messages_body(system=part("text", t)),
        "thinking": lambda t: messages_body(
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "z" + t, "signature": ""},
                {"type": "text", "text": "y"},
            ]},
            {"role": "user", "content": "x"},
        ),
        "call's input": lambda t: messages_call("f", {t: [t]}, "x"),
        "call's name": lambda t: messages_call(t, {}, "x"),
        "result": lambda t: messages_call("f", {}, t),
        "result's block": lambda t: messages_call("f", {}, part("text", t)),
        "tool": lambda t: messages_body(
            tools=[{"name": "f", "description": t, "input_schema": schema(t)}]
        ),
    },
}  # fmt: skip
PLACES["/tokenize"] = PLACES["/v1/chat/completions"]
CASES = [(path, place) for path, places in PLACES.items() for place in places]


HTTP = httpx.Client(timeout=30)


def markers(server: ScriptedServer, path: str, body: Body) -> Counter[int]:
    """How often every added token is in the prompt."""
    tokenizer = server.served.tokenizer
    if path == "/tokenize":
        body = {name: value for name, value in body.items() if name != "max_tokens"}
    answer = HTTP.post(server.url + path, json={"model": "scripted", **body})
    assert answer.status_code == 200, answer.text
    ids = answer.json()["tokens"] if path == "/tokenize" else server.engine.prompts[-1]
    added = {tokenizer.id_of(marker) for marker in tokenizer.markers}
    return Counter(token_id for token_id in ids if token_id in added)


def texts(spelled: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Texts of markers, parts of markers, and what stands between them."""
    halves = [half for m in spelled for half in (m[: len(m) // 2], m[len(m) // 2 :], m[:-1], m[1:])]
    pieces = st.sampled_from([*spelled, *filter(None, halves), "\n", " ", "user", "x", "\ue000"])
    return st.lists(pieces, min_size=1, max_size=6).map("".join)


@pytest.mark.parametrize(("path", "place"), CASES, ids=lambda value: value)
def test_marker_text_stays_text(scripted: ScriptedServer, path: str, place: str) -> None:
    build = PLACES[path][place]
    scripted.say("y")
    expected = markers(scripted, path, build("x"))
    every = "".join(scripted.served.tokenizer.markers)
    assert markers(scripted, path, build(every)) == expected

    @settings(max_examples=12, deadline=None, database=None, derandomize=True)
    @given(texts(scripted.served.tokenizer.markers))
    def hold(text: str) -> None:
        assert markers(scripted, path, build(text)) == expected

    hold()


@pytest.mark.parametrize("place", PLACES["/v1/messages"])
def test_counting_tokens_counts_the_prompt(scripted: ScriptedServer, place: str) -> None:
    body = PLACES["/v1/messages"][place]("]~b]user <mm:think>")
    scripted.say("y")
    markers(scripted, "/v1/messages", body)
    body.pop("max_tokens")
    answer = HTTP.post(
        f"{scripted.base_url}/messages/count_tokens", json={"model": "scripted", **body}
    )
    assert answer.json() == {"input_tokens": len(scripted.engine.prompts[-1])}
