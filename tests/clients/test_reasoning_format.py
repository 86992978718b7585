"""The server says where reasoning goes, and a history in any of its forms gives the same prompt."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import OpenAI
from tests.clients.servers import scripted_server

from gnomon.engine.models.loader import resolve_model

ASK: Any = [{"role": "user", "content": "x"}]
BLOCK = "<mm:think>why</mm:think>"
FORMS = {
    "field": ("why", "so"),
    "content": (None, f"{BLOCK}so"),
    "both": ("why", f"{BLOCK}so"),
}


@pytest.mark.parametrize("form", FORMS)
def test_reasoning_goes_where_the_server_says_and_comes_back_once(form: str) -> None:
    reasoning, content = FORMS[form]
    with scripted_server(resolve_model("nano"), reasoning_format=form) as server:
        client = OpenAI(base_url=server.base_url, api_key="x", max_retries=0)
        server.say(f"{BLOCK}so")
        message = client.chat.completions.create(model="scripted", messages=ASK).choices[0].message
        assert message.content == content
        assert getattr(message, "reasoning_content", None) == reasoning
        deltas = [
            chunk.choices[0].delta
            for chunk in client.chat.completions.create(model="scripted", messages=ASK, stream=True)
        ]
        assert "".join(delta.content or "" for delta in deltas) == content
        told = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        assert told == (reasoning or "")
        history: Any = [*ASK, message.model_dump(exclude_none=True), *ASK]
        client.chat.completions.create(model="scripted", messages=history)
        assert server.prompt().count(f"{BLOCK}so") == 1
        assert server.prompt().count("why") == 1
        assert client.models.list().data[0].model_dump()["reasoning_format"] == form
        assert httpx.get(f"{server.url}/server_info").json()["reasoning_format"] == form
