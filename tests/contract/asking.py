"""Questions to a server, and its answers in one shape: whole or streamed, at any endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

CHAT, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/completions"
MESSAGES = "/v1/messages"
USER: list[dict[str, Any]] = [{"role": "user", "content": "Say hello to the world."}]
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER, "max_tokens": 8},
    RESPONSES: {"input": "Say hello to the world.", "max_output_tokens": 8},
    COMPLETIONS: {"prompt": "Say hello to the world.", "max_tokens": 8},
    MESSAGES: {"messages": USER, "max_tokens": 8, "temperature": 0},
}
DONE = "[DONE]"
TOGETHER = 16


@dataclass(frozen=True)
class Packets:
    """The data of a stream's events, in order; ``done`` if the last was ``[DONE]``."""

    events: tuple[dict[str, Any], ...]
    names: tuple[str | None, ...]
    done: bool
    text: str


@dataclass
class Said:
    """What an answer says, however it was sent.

    Attributes:
        content: text by choice.
        reasoning: by choice.
        calls: name and arguments by choice.
        finish: reasons by choice; of a response its status.
    """

    content: dict[int, str] = field(default_factory=dict)
    reasoning: dict[int, str] = field(default_factory=dict)
    calls: dict[int, list[list[str]]] = field(default_factory=dict)
    finish: dict[int, str] = field(default_factory=dict)
    usage: dict[str, Any] | None = None


class Asker:
    """Asks one server; the answer to a question that was asked before is remembered."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http
        self._known: dict[str, httpx.Response] = {}

    def ask(self, path: str, change: Mapping[str, Any], *, stream: bool) -> httpx.Response:
        """Ask the endpoint's base question with a change; streams with usage, if it is optional."""
        body = {"model": "nano", **BASE[path], "stream": stream}
        if path != MESSAGES:
            body["seed"] = 5
        if stream and path in (CHAT, COMPLETIONS):
            body["stream_options"] = {"include_usage": True}
        return self.post(path, {**body, **change})

    def ask_all(self, questions: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Ask questions whole and streamed, several at a time, to have the answers ready."""
        with ThreadPoolExecutor(TOGETHER) as pool:
            asked = [
                pool.submit(self.ask, path, change, stream=stream)
                for path, change in questions
                for stream in (False, True)
            ]
            for one in asked:
                one.result()

    def post(self, path: str, body: Any) -> httpx.Response:
        """Send a body."""
        key = path + json.dumps(body)
        if key not in self._known:
            self._known[key] = self.http.post(
                path,
                content=json.dumps(body).encode(),
                headers={"content-type": "application/json"},
            )
        return self._known[key]


def selected(request: pytest.FixtureRequest, *names: str) -> list[tuple[Any, ...]]:
    """Parameters of the selected tests of the module that has all of these, each once."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    params = [item.callspec.params for item in items
              if item.module is request.module and hasattr(item, "callspec")]  # fmt: skip
    found = (tuple(map(one.get, names)) for one in params if set(names) <= set(one))
    return list(dict.fromkeys(found))


def packets(answer: httpx.Response) -> Packets:
    """Take a stream apart, strictly."""
    text = answer.content.decode("utf-8", errors="strict")
    assert text.endswith("\n\n")
    found, names, done = [], [], False
    for block in text.removesuffix("\n\n").split("\n\n"):
        assert not done, "something follows [DONE]"
        name = None
        for line in block.split("\n"):
            kind, _, value = line.partition(": ")
            assert kind in ("event", "data"), line
            if kind == "event":
                name = value
            elif value == DONE:
                done = True
            else:
                found.append(json.loads(value))
                names.append(name)
    return Packets(tuple(found), tuple(names), done, text)


def said(path: str, answer: httpx.Response, *, stream: bool) -> Said:
    """What an answer says."""
    if path == RESPONSES:
        response = packets(answer).events[-1]["response"] if stream else answer.json()
        return _of_response(response)
    if path == MESSAGES:
        return _of_message(_message(packets(answer)) if stream else answer.json())
    told = Said()
    for part in packets(answer).events if stream else (answer.json(),):
        for choice in part["choices"]:
            _take(told, choice, choice.get("delta") or choice.get("message") or choice)
        told.usage = part.get("usage") or told.usage
    return told


def _take(told: Said, choice: dict[str, Any], delta: dict[str, Any]) -> None:
    at = choice["index"]
    told.content[at] = told.content.get(at, "") + (delta.get("content") or delta.get("text") or "")
    told.reasoning[at] = told.reasoning.get(at, "") + (delta.get("reasoning_content") or "")
    calls = told.calls.setdefault(at, [])
    for number, call in enumerate(delta.get("tool_calls") or ()):
        number = call.get("index", number)
        while len(calls) <= number:
            calls.append(["", ""])
        calls[number][0] += call["function"].get("name") or ""
        calls[number][1] += call["function"].get("arguments") or ""
    if choice.get("finish_reason"):
        told.finish[at] = choice["finish_reason"]


def uncached(told: Said) -> Said:
    """The same without what the prefix cache did: the second of two finds the first's prefix."""
    usage = told.usage
    assert usage is not None
    if "cache_read_input_tokens" in usage:
        usage["input_tokens"] += usage.pop("cache_read_input_tokens")
    else:
        (usage.get("prompt_tokens_details") or usage["input_tokens_details"]).pop("cached_tokens")
    return told


def _message(stream: Packets) -> dict[str, Any]:
    """The message that a stream of Anthropic's events makes up."""
    message: dict[str, Any] = {}
    written: dict[int, str] = {}
    for event in stream.events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"])
            case "content_block_delta":
                at, delta = event["index"], event["delta"]
                key = delta["type"].removesuffix("_delta")
                if key == "input_json":
                    written[at] = written.get(at, "") + delta["partial_json"]
                else:
                    message["content"][at][key] += delta[key]
            case "content_block_stop" if event["index"] in written:
                message["content"][event["index"]]["input"] = json.loads(written[event["index"]])
            case "message_delta":
                message |= event["delta"]
                message["usage"] = event["usage"]
    return message


def _of_message(message: dict[str, Any]) -> Said:
    told = Said({0: ""}, {0: ""}, {0: []}, {0: message["stop_reason"]}, message["usage"])
    for block in message["content"]:
        if block["type"] == "tool_use":
            told.calls[0].append([block["name"], json.dumps(block["input"])])
        else:
            kind = block["type"]
            (told.content if kind == "text" else told.reasoning)[0] += block[kind]
    return told


def _of_response(response: dict[str, Any]) -> Said:
    told = Said({0: ""}, {0: ""}, {0: []}, {0: response["status"]}, response["usage"])
    for item in response["output"]:
        if item["type"] == "function_call":
            told.calls[0].append([item["name"], item["arguments"]])
            continue
        text = "".join(part["text"] for part in item["content"])
        (told.content if item["type"] == "message" else told.reasoning)[0] += text
    return told
