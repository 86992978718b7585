"""Small conversations that a server must be able to hold before it is loaded or judged.

They test the shape of answers, never their wisdom: a model with random weights passes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from gnomon.harness.nouns import ServerAddress

FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter"})

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city."}},
            "required": ["city"],
        },
    },
}
QUESTION: dict[str, Any] = {"role": "user", "content": "What is the weather in Athens?"}
CALL_AND_RESULT: list[dict[str, Any]] = [
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_probe_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Athens"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_probe_1", "content": '{"sky": "clear", "celsius": 24}'},
]


class ProbeFailed(Exception):
    """The server's answer is not what the protocol asks for; the message says what was seen."""


@dataclass(frozen=True)
class Probe:
    """What a probe saw.

    Attributes:
        evidence: a sentence.
        raw: request and answer, for the run folder.
    """

    evidence: str
    raw: Mapping[str, Any]


def client_for(server: ServerAddress, timeout_s: float) -> httpx.Client:
    """An HTTP client of a server: its base URL, its key, and no proxies from the environment."""
    headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
    return httpx.Client(base_url=server.origin, headers=headers, timeout=timeout_s, trust_env=False)


def served_name(client: httpx.Client, server: ServerAddress) -> Probe:
    """The model is listed under the name that every later request will use."""
    answer = _json(client.get("/v1/models"))
    names = [str(item.get("id")) for item in answer.get("data") or [] if isinstance(item, dict)]
    if server.model not in names:
        raise ProbeFailed(f"/v1/models lists {names}, not {server.model!r}")
    return Probe(f"/v1/models lists {server.model!r}", {"answer": answer})


def streamed_completion(client: httpx.Client, server: ServerAddress) -> Probe:
    """One chat completion streams to its end, with a finish reason and usage."""
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": "Count from one to five."}],
        "max_tokens": 16,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begin = time.monotonic()
    first: float | None = None
    chunks: list[dict[str, Any]] = []
    ended = False
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            text = response.read().decode(errors="replace")
            raise ProbeFailed(f"status {response.status_code}: {text[:300]}")
        for line in response.iter_lines():
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                ended = True
                break
            first = first if first is not None else time.monotonic() - begin
            chunks.append(_chunk(data))
    return Probe(_judge_stream(chunks, ended, first), {"request": body, "chunks": chunks})


def _chunk(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except json.JSONDecodeError:
        raise ProbeFailed(f"a stream event is not JSON: {data[:200]!r}") from None
    if not isinstance(chunk, dict):
        raise ProbeFailed(f"a stream event is not an object: {data[:200]!r}")
    if "error" in chunk:
        raise ProbeFailed(f"the stream carries an error: {chunk['error']}")
    return chunk


def _judge_stream(chunks: list[dict[str, Any]], ended: bool, first: float | None) -> str:
    choices = [choice for chunk in chunks for choice in chunk.get("choices") or []]
    reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    if not choices or first is None:
        raise ProbeFailed("the stream carries no choices")
    if not ended:
        raise ProbeFailed("the stream ended without [DONE]")
    if len(reasons) != 1 or reasons[0] not in FINISH_REASONS:
        raise ProbeFailed(f"the stream needs exactly one known finish_reason, not {reasons}")
    if len(usages) != 1:
        raise ProbeFailed(f"asked for usage in the stream, got it {len(usages)} times")
    tokens = usages[0].get("completion_tokens")
    if not isinstance(tokens, int) or tokens < 1:
        raise ProbeFailed(f"usage counts {tokens!r} completion tokens")
    return (
        f"{len(chunks)} events, {tokens} tokens, finish_reason {reasons[0]!r}, "
        f"first event after {first * 1000:.0f} ms"
    )


def tool_round_trip(client: httpx.Client, server: ServerAddress) -> Probe:
    """A tool can be offered, and a history with its call and its result is answered.

    Whether the model calls the tool is its own affair; if it does, the call must be well formed.
    """
    common = {
        "model": server.model,
        "tools": [WEATHER_TOOL],
        "tool_choice": "auto",
        "max_tokens": 32,
        "temperature": 0,
    }
    offer = {**common, "messages": [QUESTION]}
    history = {**common, "messages": [QUESTION, *CALL_AND_RESULT]}
    offered = _json(client.post("/v1/chat/completions", json=offer))
    first = _judge_message(offered, "with the tool offered")
    answered = _json(client.post("/v1/chat/completions", json=history))
    second = _judge_message(answered, "after the tool's result")
    before, after = _prompt_tokens(offered), _prompt_tokens(answered)
    if after <= before:
        raise ProbeFailed(
            f"the history with a tool call and its result has {after} prompt tokens, without them "
            f"{before}: the server dropped them"
        )
    return Probe(
        f"{first}; {second}; the call and its result added {after - before} prompt tokens",
        {"offer": offer, "offered": offered, "history": history, "answered": answered},
    )


def _judge_message(answer: Mapping[str, Any], when: str) -> str:
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1:
        raise ProbeFailed(f"{when}: the answer needs exactly one choice")
    reason = choices[0].get("finish_reason")
    message = choices[0].get("message")
    if reason not in FINISH_REASONS or not isinstance(message, dict):
        raise ProbeFailed(f"{when}: no message or no known finish_reason ({reason!r})")
    if message.get("role") != "assistant":
        raise ProbeFailed(f"{when}: the message's role is {message.get('role')!r}")
    calls = message.get("tool_calls") or []
    for call in calls:
        _judge_call(call, when)
    if not calls and not isinstance(message.get("content") or "", str):
        raise ProbeFailed(f"{when}: the content is not text")
    if reason == "tool_calls" and not calls:
        raise ProbeFailed(f"{when}: finish_reason is tool_calls, but there is none")
    return f"{when}: {len(calls)} tool calls, finish_reason {reason!r}"


def _judge_call(call: object, when: str) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not call.get("id") or not isinstance(function, dict):
        raise ProbeFailed(f"{when}: a tool call without id or function: {call}")
    try:
        arguments = json.loads(str(function.get("arguments")))
    except json.JSONDecodeError:
        raise ProbeFailed(f"{when}: a tool call's arguments are not JSON: {function}") from None
    if not function.get("name") or not isinstance(arguments, dict):
        raise ProbeFailed(f"{when}: a tool call without a name or an arguments object: {function}")


def _prompt_tokens(answer: Mapping[str, Any]) -> int:
    tokens = (answer.get("usage") or {}).get("prompt_tokens")
    if not isinstance(tokens, int) or tokens < 1:
        raise ProbeFailed(f"usage counts {tokens!r} prompt tokens")
    return tokens


def _json(response: httpx.Response) -> dict[str, Any]:
    if response.status_code != 200:
        raise ProbeFailed(f"status {response.status_code}: {response.text[:300]}")
    try:
        answer = response.json()
    except json.JSONDecodeError:
        raise ProbeFailed(f"the answer is not JSON: {response.text[:200]!r}") from None
    if not isinstance(answer, dict):
        raise ProbeFailed(f"the answer is not an object: {response.text[:200]!r}")
    return answer
