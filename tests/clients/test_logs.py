"""Every line that is logged for a request has its id, also when something fails unforeseen."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.clients.servers import ScriptedServer, scripted_server

from gnomon.engine.log_format import configure_log
from gnomon.engine.models.loader import resolve_model

CHAT: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "x"}]}


@pytest.fixture
def failing() -> Iterator[ScriptedServer]:
    with scripted_server(resolve_model("nano")) as server:
        server.say("x", fail=RuntimeError("nobody foresaw this"))
        yield server


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", CHAT),
        ("chat/completions", {**CHAT, "stream": True}),
        ("responses", {"model": "scripted", "input": "x"}),
        ("responses", {"model": "scripted", "input": "x", "background": True, "stream": True}),
        ("messages", {**CHAT, "max_tokens": 2, "stream": True}),
    ],
)
def test_a_fault_is_told_without_its_reason_and_logged_with_the_request_s_id(
    failing: ScriptedServer, capsys: pytest.CaptureFixture[str], path: str, body: dict[str, Any]
) -> None:
    before = logging.root.handlers[:]
    try:
        configure_log("json")
        answer = httpx.post(
            f"{failing.base_url}/{path}", json=body, headers={"x-request-id": "mine"}
        )
        written, deadline = "", time.monotonic() + 20
        while "duration_s" not in written and time.monotonic() < deadline:
            written += capsys.readouterr().err
    finally:
        logging.root.handlers[:] = before
    assert answer.headers["x-request-id"] == "mine"
    assert "nobody foresaw" not in answer.text
    assert "internal_error" in answer.text
    lines = [json.loads(line) for line in written.splitlines()]
    mine = [line for line in lines if line["logger"].startswith("gnomon.engine.serve")]
    assert {line.get("request_id") for line in mine} == {"mine"}
    assert sum("nobody foresaw" in line.get("exception", "") for line in mine) == 1
    assert mine[-1]["path"] == f"/v1/{path}"
    assert mine[-1]["status"] == answer.status_code == (200 if body.get("stream") else 500)
