"""Packets of streams that no random model writes: reasoning, text and calls, in every cut."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tests.clients.offers import ARGUMENTS, CALLS, CHAT_TOOLS, FLAT_TOOLS
from tests.clients.servers import ScriptedServer
from tests.contract.asking import CHAT, COMPLETIONS, RESPONSES, packets, said
from tests.contract.shapes import check_packets

USER: Any = [{"role": "user", "content": "x"}]
THINK: Any = {"chat_template_kwargs": {"thinking_mode": "enabled"}}
LINE_ENDS = "a\u2028b\u2029c\u0085d"
TEXTS = {
    "ascii": "Hello, world.",
    "latin": "Überraschung à la carte",
    "cjk": "漢字かな交じり文",
    "emoji": "👩‍👩‍👧‍👦 and 🇩🇪",
    "combining": "e\u0301 n\u0303",
    "line ends of Python": LINE_ENDS,
    "JSON in text": '{"a": "\\u00e9\\n"}',
    "like an event": "data: [DONE]\n\ndata: x",
}
REPLIES = {
    "reasoning and text": "why</mm:think>Sure.",
    "reasoning, text and calls": "why</mm:think>Sure." + CALLS,
    "calls alone": "</mm:think>" + CALLS,
    "reasoning alone": "only thoughts",
}


def ask(scripted: ScriptedServer, path: str, stream: bool = True, **fields: Any) -> httpx.Response:
    base = {"input": "x"} if path == RESPONSES else {"messages": USER}
    if path == COMPLETIONS:
        base = {"prompt": "x"}
    if stream and path != RESPONSES:
        fields["stream_options"] = {"include_usage": True}
    body = {"model": "nano", **base, "stream": stream, **fields}
    return httpx.post(scripted.url + path, json=body, timeout=30)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("path", [CHAT, RESPONSES, COMPLETIONS])
def test_multi_byte_text_is_intact(scripted: ScriptedServer, path: str, name: str) -> None:
    scripted.say(TEXTS[name], plain=True)
    answer = ask(scripted, path)
    check_packets(path, packets(answer))
    assert said(path, answer, stream=True).content == {0: TEXTS[name]}
    lines = [line for line in answer.text.splitlines() if line]
    assert all(line.startswith(("data: ", "event: ")) for line in lines)


@pytest.mark.parametrize("plain", [False, True], ids=["tokens", "spelled out"])
@pytest.mark.parametrize("name", REPLIES)
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_packets_hold_one_thing_each(
    scripted: ScriptedServer, path: str, name: str, plain: bool
) -> None:
    scripted.say(REPLIES[name], plain=plain)
    tools = FLAT_TOOLS if path == RESPONSES else CHAT_TOOLS
    streamed = ask(scripted, path, tools=tools, **THINK)
    check_packets(path, packets(streamed))
    whole = ask(scripted, path, stream=False, tools=tools, **THINK)
    told = said(path, streamed, stream=True)
    assert told == said(path, whole, stream=False)
    made = [json.loads(arguments) for _, arguments in told.calls[0]]
    assert made == (ARGUMENTS if CALLS in REPLIES[name] else [])


@pytest.mark.parametrize("name", TEXTS)
def test_the_real_client_reads_multi_byte_text(
    scripted: ScriptedServer, client: OpenAI, name: str
) -> None:
    told = client.with_options(base_url=scripted.base_url)
    scripted.say(TEXTS[name], plain=True)
    chunks = told.chat.completions.create(model="nano", messages=USER, stream=True)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == TEXTS[name]
