"""Bounds: bodies, counts, open requests, time, slow readers, and how the server drains."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from tests.clients.servers import Script, ScriptedServer, gnomon_serve, scripted_server

from gnomon.engine.models.loader import resolve_model

ASK: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "x"}]}


def until(true: Any, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert true()


@pytest.fixture
def small() -> Any:
    with scripted_server(
        resolve_model("nano"), max_body_bytes=4096, max_messages=3, max_tools=1,
        max_open_requests=3, max_requests_per_key=2, debug_state=True,
        api_key=("one", "two"),
    ) as server:  # fmt: skip
        yield server


def client(server: ScriptedServer, key: str) -> OpenAI:
    return OpenAI(base_url=server.base_url, api_key=key, max_retries=0, timeout=30)


KEY = {"authorization": "Bearer one"}


def test_a_long_body_is_a_413_whether_or_not_its_length_was_told(small: ScriptedServer) -> None:
    url = f"{small.base_url}/chat/completions"
    body = json.dumps({**ASK, "user": "x" * 5000}).encode()

    def pieces() -> Any:
        yield from (body[i : i + 100] for i in range(0, len(body), 100))

    for content in (body, pieces()):
        answer = httpx.post(
            url, content=content, headers={**KEY, "content-type": "application/json"}
        )
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"


def test_messages_and_tools_are_counted(small: ScriptedServer) -> None:
    for change, param in (
        ({"messages": ASK["messages"] * 4}, "messages"),
        ({"tools": [{"type": "function", "function": {"name": n}} for n in "ab"]}, "tools"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client(small, "one").chat.completions.create(**{**ASK, **change})
        assert caught.value.param == param


def test_open_requests_are_bounded_per_key_and_in_all(small: ScriptedServer) -> None:
    small.say("hi", finish=None)
    with contextlib.ExitStack() as stack:
        for key in ("one", "one", "two"):
            stream = client(small, key).chat.completions.create(**ASK, stream=True)
            stack.callback(stream.close)
        with pytest.raises(openai.RateLimitError, match="open") as caught:
            client(small, "two").chat.completions.create(**ASK)
        assert caught.value.response.headers["retry-after"] == "1"
        assert caught.value.code == "too_many_requests"
        state = httpx.get(f"{small.url}/debug/state", headers=KEY).json()
        assert state["open_requests"] == 3
        assert sorted(state["open_requests_per_key"].values()) == [1, 2]
    until(lambda: small.served.gate.open == 0)
    small.say("hi")
    assert client(small, "one").chat.completions.create(**ASK).choices[0].message.content == "hi"


def test_requests_without_a_first_token_are_bounded_apart() -> None:
    with scripted_server(resolve_model("nano"), max_queued_requests=2, debug_state=True) as server:
        server.say("hi", finish=None)
        streams = [client(server, "x").chat.completions.create(**ASK, stream=True) for _ in "abc"]
        state = httpx.get(f"{server.url}/debug/state").json()
        assert (state["open_requests"], state["waiting_requests"]) == (3, 0)
        server.engine.script = Script((), None)  # hangs without a token

        def wait() -> None:
            with contextlib.suppress(httpx.HTTPError):  # the server ends before it answers
                httpx.post(f"{server.base_url}/chat/completions", json=ASK)

        for _ in "ab":
            threading.Thread(target=wait, daemon=True).start()
        until(lambda: server.served.gate.waiting == 2)
        with pytest.raises(openai.RateLimitError, match="2 requests wait for a first token"):
            client(server, "x").chat.completions.create(**ASK)
        for stream in streams:
            stream.close()


def test_a_generation_that_takes_too_long_ends_with_an_error() -> None:
    with scripted_server(resolve_model("nano"), request_timeout_s=0.5) as server:
        server.say("", finish=None)
        with pytest.raises(openai.APIStatusError) as caught:
            client(server, "x").chat.completions.create(**ASK)
        assert (caught.value.status_code, caught.value.code) == (504, "request_timeout")
        with pytest.raises(openai.APIError, match="longer than"):
            list(client(server, "x").chat.completions.create(**ASK, stream=True))
        until(lambda: len(server.engine.aborted) == 2)


def test_debug_state_is_served_only_if_enabled_and_asks_for_a_key(
    small: ScriptedServer, scripted: ScriptedServer
) -> None:
    assert httpx.get(f"{scripted.url}/debug/state").status_code == 404
    assert httpx.get(f"{small.url}/debug/state").status_code == 401
    assert httpx.get(f"{small.url}/debug/state", headers=KEY).json()["engine"]["blocks_total"] == 1


def test_anthropic_s_header_carries_the_key_too(small: ScriptedServer) -> None:
    url = f"{small.base_url}/models"
    assert httpx.get(url, headers={"x-api-key": "two"}).status_code == 200
    assert httpx.get(url, headers={"x-api-key": "three"}).status_code == 401


def test_a_body_that_does_not_come_is_a_408() -> None:
    with scripted_server(resolve_model("nano"), stall_timeout_s=0.3) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as sender:
            sender.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"
            )
            assert sender.recv(4096).startswith(b"HTTP/1.1 408")
        until(lambda: server.served.gate.open == 0)


def test_a_client_that_does_not_read_is_aborted() -> None:
    with scripted_server(resolve_model("nano"), stall_timeout_s=0.3) as server:
        ids = server.served.tokenizer.encode("word " * 200_000)
        server.engine.script.token_ids = ids
        host, port = server.url.removeprefix("http://").split(":")
        body = json.dumps({**ASK, "stream": True, "max_tokens": 4000}).encode()
        with socket.create_connection((host, int(port))) as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json"
                b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )
            until(lambda: len(server.engine.aborted) == 1, 60)
        until(lambda: server.served.gate.open == 0)


def test_every_answer_has_a_request_id(scripted: ScriptedServer) -> None:
    url = f"{scripted.base_url}/models"
    assert httpx.get(url, headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for bad in ("a b", "x" * 200):
        made = httpx.get(url, headers={"x-request-id": bad}).headers["x-request-id"]
        assert made.startswith("req_")
    assert httpx.get(f"{scripted.base_url}/nothing").headers["x-request-id"].startswith("req_")


SMALL = ("nano", "--max-model-len", "2048", "--kv-cache-memory-bytes", "33554432")


def test_sigterm_lets_open_requests_finish_and_takes_no_new_ones(tmp_path: Path) -> None:
    flags = (*SMALL, "--shutdown-timeout", "120", "--log-format", "json")
    with gnomon_serve(tmp_path / "log", *flags) as server:
        server.wait_ready()
        lines: list[str] = []
        body = {**ASK, "model": "nano", "max_tokens": 400, "ignore_eos": True, "stream": True}

        def read() -> None:
            with httpx.stream(
                "POST", f"{server.base_url}/chat/completions", json=body, timeout=120,
                headers={"x-request-id": "drained"},
            ) as answer:  # fmt: skip
                lines.extend(line for line in answer.iter_lines() if line)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        until(lambda: lines)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
        refused = httpx.post(f"{server.base_url}/chat/completions", json={**ASK, "model": "nano"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        thread.join(timeout=120)
        assert lines[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in lines[-2]
        assert server.process.wait(timeout=60) == 0
        log = [json.loads(line) for line in server.log.read_text().splitlines()]
        mine = next(line for line in log if line.get("request_id") == "drained")
        assert (mine["path"], mine["status"]) == ("/v1/chat/completions", 200)
