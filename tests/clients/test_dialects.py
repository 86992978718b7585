"""Other dialects through the real API: chosen by flags, in chat, Responses and histories."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import OpenAI
from tests.clients.servers import scripted_server

from gnomon.engine.models.loader import resolve_model

ASK: Any = [{"role": "user", "content": "x"}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]
K3 = (
    "<|open|>think<|sep|>why<|close|>think<|sep|><|open|>response<|sep|>so<|close|>response<|sep|>"
    '<|open|>tools<|sep|><|open|>call tool="f" index="0"<|sep|><|open|>argument key="a" '
    'type="number"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
)
REPLIES = {
    ("minimax_m2", "minimax_m2"): '<think>why</think>so<minimax:tool_call>\n<invoke name="f">\n'
    '<parameter name="a">1</parameter>\n</invoke>\n</minimax:tool_call>',
    ("kimi_k2", "kimi_k2"): "<think>why</think>so<|tool_calls_section_begin|><|tool_call_begin|>"
    'functions.f:4<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>'
    "<|tool_calls_section_end|>",
    ("kimi_k3", "kimi_k3"): K3,
    ("hermes", "think"): '<think>why</think>so<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n'
    "</tool_call>",
}


@pytest.mark.parametrize(("parsers", "reply"), REPLIES.items(), ids=[n for n, _ in REPLIES])
def test_a_reply_in_another_dialect(parsers: tuple[str, str], reply: str) -> None:
    with scripted_server(
        resolve_model("nano"), tool_call_parser=parsers[0], reasoning_parser=parsers[1]
    ) as server:
        client = OpenAI(base_url=server.base_url, api_key="x", max_retries=0)
        server.say(reply, plain=True)
        choice = client.chat.completions.create(
            model="scripted", messages=ASK, tools=TOOLS
        ).choices[0]
        message: Any = choice.message
        assert (message.reasoning_content, message.content) == ("why", "so")
        assert json.loads(message.tool_calls[0].function.arguments) == {"a": 1}
        assert choice.finish_reason == "tool_calls"
        call_id = message.tool_calls[0].id
        assert (call_id == "functions.f:4") == (parsers[0] == "kimi_k2")
        with client.chat.completions.stream(model="scripted", messages=ASK, tools=TOOLS) as stream:
            streamed: Any = stream.get_final_completion().choices[0].message
        assert (streamed.reasoning_content, streamed.content) == ("why", "so")
        result: Any = {"role": "tool", "tool_call_id": call_id, "content": "2"}
        history = [*ASK, message.model_dump(exclude_none=True), result]
        client.chat.completions.create(model="scripted", messages=history, tools=TOOLS)
        assert server.prompt().count("why") == 1
        flat: Any = [{"type": "function", "name": "f", "parameters": PARAMETERS}]
        found = client.responses.create(model="scripted", input="x", tools=flat)
        assert [item.type for item in found.output] == ["reasoning", "message", "function_call"]
