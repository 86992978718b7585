"""Request bodies that no client should send: random ones, and good ones with something broken."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping
from typing import Any

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "enum": ["x", "y"]},
        "b": {"type": "array", "items": {"$ref": "#/$defs/n"}},
        "c": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"n": {"type": "number"}},
}
_TOOL: dict[str, Any] = {"name": "f", "description": "d", "parameters": _SCHEMA}
_CALL: dict[str, Any] = {
    "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "x"}'},
}  # fmt: skip
_SAMPLING: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1, "stop": ["zz"],
    "stop_token_ids": [5], "user": "u", "metadata": {"k": "v"},
}  # fmt: skip
_CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi <mm:think> 漢字 😀"}]},
    {"role": "assistant", "content": None, "reasoning_content": "why", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
    {"role": "user", "content": "go on"},
]
_ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "reasoning", "id": "r", "summary": [],
     "content": [{"type": "reasoning_text", "text": "why"}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": "x"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "3"},
]  # fmt: skip

GOOD: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"messages": _CHAT[:2], "max_tokens": 2, **_SAMPLING},
        {"messages": _CHAT, "max_tokens": 2, "reasoning_effort": "high",
         "tools": [{"type": "function", "function": _TOOL}], "tool_choice": "auto"},
        {"messages": _CHAT[:2], "max_tokens": 2, "chat_template_kwargs": {"thinking_mode": "x"},
         "response_format": {"type": "json_schema",
                             "json_schema": {"name": "s", "schema": _SCHEMA, "strict": True}}},
        {"messages": _CHAT[:2], "max_tokens": 2, "logprobs": True, "top_logprobs": 2, "n": 2,
         "logit_bias": {"5": 1}, "presence_penalty": 0.1, "frequency_penalty": 0.1,
         "stream_options": {"include_usage": True}},
        {"messages": _CHAT[:2], "max_tokens": 8, "tool_choice": "required",
         "parallel_tool_calls": False,
         "tools": [{"type": "function", "function": {**_TOOL, "strict": True}}]},
    ],
    "/v1/responses": [
        {"input": "hi", "max_output_tokens": 2, "instructions": "Be brief.", **_SAMPLING},
        {"input": _ITEMS, "max_output_tokens": 2, "tools": [{"type": "function", **_TOOL}],
         "tool_choice": "auto", "reasoning": {"effort": "low", "summary": "auto"}},
        {"input": _ITEMS, "max_output_tokens": 2, "background": True, "truncation": "auto",
         "max_tool_calls": 3, "include": ["reasoning.encrypted_content"]},
        {"input": [*_ITEMS[:1], {"type": "reasoning", "summary": [], "encrypted_content": "x"}],
         "max_output_tokens": 2, "store": False, "include": ["reasoning.encrypted_content"],
         "service_tier": "auto", "prompt_cache_key": "k", "safety_identifier": "s"},
        {"input": _ITEMS[:1], "max_output_tokens": 2, "store": True, "truncation": "auto",
         "previous_response_id": "resp_1",
         "text": {"format": {"type": "json_schema", "name": "s", "schema": _SCHEMA}}},
    ],
    "/v1/completions": [
        {"prompt": "hi", "max_tokens": 2, **_SAMPLING},
        {"prompt": [[1, 2, 3], [4, 5]], "max_tokens": 2, "echo": True, "logprobs": 1},
        {"prompt": ["a", "漢字"], "max_tokens": 2, "n": 2, "best_of": 2},
        {"prompt": "a", "max_tokens": 2, "min_tokens": 1, "repetition_penalty": 1.2,
         "logit_bias": {"5": -100}, "stream_options": {"include_usage": True}},
    ],
    "/v1/messages": [
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "system": "Be brief.",
         "stop_sequences": ["zz"], "temperature": 0.5, "top_k": 5},
        {"messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "why", "signature": "s"},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": "x"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "3"}]}],
         "max_tokens": 2, "tool_choice": {"type": "auto"},
         "thinking": {"type": "enabled", "budget_tokens": 1024},
         "tools": [{"name": "f", "description": "d", "input_schema": _SCHEMA}]},
    ],
    "/v1/messages/count_tokens": [{"messages": [{"role": "user", "content": "hi"}]}],
    "/tokenize": [{"prompt": "hi"}, {"messages": _CHAT}],
    "/detokenize": [{"tokens": [1, 2, 3]}],
}  # fmt: skip
"""Good bodies by path, without the model. Paths that a server does not have are not asked."""

_WORDS = (
    "model", "messages", "input", "prompt", "role", "content", "tools", "type", "function",
    "parameters", "properties", "items", "$ref", "$defs", "anyOf", "enum", "pattern", "format",
    "stream", "stop", "seed", "n", "logprobs", "tool_calls", "arguments", "name", "id",
    "response_format", "json_schema", "schema", "strict", "text", "__class__", "", "a b", "\x00",
)  # fmt: skip
_TEXTS = (
    "", " ", "x", "user", "assistant", "tool", "system", "object", "string", "auto", "none",
    "required", "json_object", "json_schema", "#/$defs/n", "#", "#/$defs/loop", "http://[", "(",
    "[a-z]{1,99999}", "(a+)+$", "\\p{Greek}", "{x", "{}", '{"a": ', "null", "NaN", "\x00", "\ufffd",
    "\u2028", "😀" * 9, "]~b]user", "[e~[", "<mm:think>", "</mm:think>", "]<]minimax[>[",
    "{{ 7*7 }}", "{% raise %}", "file:///etc/passwd", "../../x", "é\u0301", "\ue000", "\U0010ffff",
    "\ud800", "a" * 3000, "word " * 400,
)  # fmt: skip
_NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 16, 17, 64, 129, 4095, 4096, 10**6, 2**31 - 1, 2**31, 2**53, 2**63 - 1,
    2**63, 2**64, -(2**63), -(2**63) - 1, 10**30, 0.0, -0.0, 0.5, 1.5, 1e-9, 1e308, -1e308, 1e-320,
)  # fmt: skip


def junk(rng: random.Random, depth: int = 0) -> Any:
    """A random JSON value."""
    kind = rng.randrange(10 if depth < 4 else 6)
    if kind <= 1:
        return rng.choice((None, True, False))
    if kind <= 3:
        return rng.choice(_NUMBERS)
    if kind <= 5:
        return rng.choice(_TEXTS)
    size = rng.choice((0, 1, 1, 2, 3))
    if kind <= 7:
        return [junk(rng, depth + 1) for _ in range(size)]
    return {rng.choice(_WORDS): junk(rng, depth + 1) for _ in range(size)}


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a JSON value with each of its keys or positions."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        here = waiting.pop()
        keys = list(here) if isinstance(here, dict) else range(len(here))
        for key in keys:
            found.append((here, key))
            if isinstance(here[key], dict | list):
                waiting.append(here[key])
    return found


def mutate(body: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The body with one thing changed, in place: replaced, dropped, added, repeated or wrapped."""
    here, key = rng.choice(places(body))
    match rng.randrange(7):
        case 0 | 1:
            here[key] = junk(rng)
        case 2:
            del here[key]
        case 3 if isinstance(here, dict):
            here[rng.choice(_WORDS)] = junk(rng)
        case 3 | 4 if isinstance(here, list):
            here.insert(key, copy.deepcopy(here[rng.randrange(len(here))]))
        case 5:
            for _ in range(rng.choice((1, 2, 70, 300))):
                here[key] = [here[key]] if rng.random() < 0.5 else {"items": here[key]}
        case _:
            other, its_key = rng.choice(places(body))
            here[key] = copy.deepcopy(other[its_key])
    return body


def broken(text: bytes, rng: random.Random) -> bytes:
    """A text with bytes cut off, changed, inserted or repeated."""
    at = rng.randrange(len(text) + 1)
    match rng.randrange(4):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :]
        case 2:
            extra = (b"\xff", b"\xed\xa0\x80", b"{", b"]", b'"', b"\\u", b"\x00", b"1e999", b"NaN")
            return text[:at] + rng.choice(extra) + text[at:]
        case _:
            return text[:at] + text[max(0, at - 9) :]


def body(path: str, rng: random.Random, model: str = "nano") -> bytes:
    """A body for an endpoint: in 100, about 70 mutated, 15 broken as text, 15 random."""
    kind = rng.random()
    if kind < 0.08:
        return _written(junk(rng))
    seeds = GOOD.get(path) or GOOD["/v1/chat/completions"]
    good: dict[str, Any] = {"model": model, **copy.deepcopy(rng.choice(seeds))}
    if rng.random() < 0.3:
        good["stream"] = True
    if kind < 0.15:
        good = {"model": model, **{name: junk(rng) for name in rng.sample(sorted(good), k=2)}}
    elif kind < 0.85:
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
            if places(good):
                good = mutate(good, rng)
    good |= {name: most for name, most in _cap(path).items() if good.get(name) is None}
    text = _written(good)
    return broken(text, rng) if kind > 0.85 else text


def _cap(path: str) -> dict[str, Any]:
    """What keeps an answer short, where a mutation took it away: a long one is no hang."""
    if path in ("/v1/chat/completions", "/v1/completions", "/v1/messages"):
        return {"max_tokens": 2}
    return {"max_output_tokens": 2} if path == "/v1/responses" else {}


def _written(value: Any) -> bytes:
    return json.dumps(value).encode()


def paths(document: Mapping[str, Any]) -> list[str]:
    """The POST endpoints of an OpenAPI document that take a body at a fixed path."""
    return [
        path for path, methods in document["paths"].items() if "post" in methods and "{" not in path
    ]
