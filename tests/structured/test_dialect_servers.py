"""Enforced calls and formats where the server speaks another dialect than the model's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from openai import OpenAI
from tests.clients.servers import gnomon_serve
from tests.structured.schemas import BOOLEAN, INTEGER, STRING, obj
from tests.structured.test_api import chat

SPOKEN = {"hermes": "think", "kimi_k3": "kimi_k3"}
SCHEMA = obj(n={**INTEGER, "minimum": 3}, on=BOOLEAN, note=STRING)
FUNCTIONS = {"f": SCHEMA, "g": obj(a=STRING)}


@pytest.fixture(scope="module", params=SPOKEN)
def other(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[OpenAI]:
    """The real client of a real server with another dialect, and limits of its own."""
    log = tmp_path_factory.mktemp("other") / "server.log"
    flags = (
        "--tool-call-parser", request.param, "--reasoning-parser", SPOKEN[request.param],
        "--structured-max-text", "12", "--structured-max-items", "2", "--max-model-len", "4096",
    )  # fmt: skip
    with gnomon_serve(log, "nano", *flags) as server:
        server.wait_ready()
        yield OpenAI(base_url=server.base_url, api_key="unused", max_retries=0, timeout=240)


def tools(*, strict: bool = False) -> Any:
    return [
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}
        for name, schema in FUNCTIONS.items()
    ]


def check(calls: list[tuple[str, str]]) -> None:
    assert calls
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), FUNCTIONS[name])


def test_calls_are_enforced_in_every_dialect(other: OpenAI) -> None:
    stream = True  # whole answers are put together from the same events
    _, calls, finish = chat(other, stream, tools=tools(), tool_choice="required", max_tokens=2000)
    assert finish == "tool_calls"
    check(calls)
    assert len(calls) <= 2
    named: Any = {"type": "function", "function": {"name": "g"}}
    _, calls, _ = chat(other, stream, tools=tools(), tool_choice=named, max_tokens=2000)
    assert [name for name, _ in calls] == ["g"]
    check(calls)
    only = {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}
    _, calls, _ = chat(
        other, stream, tools=tools(), max_tokens=2000,
        tool_choice={"type": "allowed_tools", "allowed_tools": only},
    )  # fmt: skip
    check(calls)
    assert {name for name, _ in calls} == {"f"}


@pytest.mark.parametrize("stream", [False, True])
def test_formats_are_enforced_in_every_dialect(other: OpenAI, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    content, calls, finish = chat(other, stream, response_format=form, max_tokens=2000)
    assert (calls, finish) == ([], "stop")
    value = json.loads(content)
    jsonschema.validate(value, SCHEMA)
    assert len(value["note"]) <= 12  # the server's limit, where nano's own is 32


def test_the_limits_are_reported(other: OpenAI) -> None:
    info = other.get("/../server_info", cast_to=object)
    assert isinstance(info, dict)
    assert info["structured_output_limits"] == {"text": 12, "items": 2}
