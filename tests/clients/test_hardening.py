"""One real server under strain: readers that stop, a core that is stopped, and the drain."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchmarks.vitals import metrics
from tests.clients.servers import ServerProcess, gnomon_serve

NAME = "a-name-that-every-packet-repeats-" * 100
ASK: dict[str, Any] = {
    "model": NAME, "messages": [{"role": "user", "content": "x"}], "ignore_eos": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("hardening") / "server.log"
    flags = (
        "--max-model-len", "2048", "--kv-cache-memory-bytes", "33554432", "--stall-timeout", "1.5",
        "--heartbeat-timeout", "1", "--shutdown-timeout", "1", "--log-format", "json",
        "--served-model-name", NAME, "--max-num-seqs", "8",
    )  # fmt: skip
    with gnomon_serve(log, "nano", *flags) as running:
        deadline = time.monotonic() + 120
        while "server ready" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        lines = map(json.loads, log.read_text().splitlines())
        ready = next(line["message"] for line in lines if "server ready" in line["message"])
        running.url = ready[ready.index("http://") :].split("/v1")[0]
        yield running


def until(true: Callable[[], Any], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert true()


def idle(server: ServerProcess) -> bool:
    found = metrics(server.url)
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_blocks/used")
    return not any(found[name] for name in names)


def post(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def read_all(reader: socket.socket) -> None:
    while reader.recv(1 << 20):
        pass


def test_readers_that_stop_are_cut_and_their_blocks_are_free(server: ServerProcess) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    body = {**ASK, "max_tokens": 1900, "stream": True}
    with contextlib.ExitStack() as stack:
        readers = []
        for _ in range(4):
            reader = stack.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.settimeout(60)
            reader.connect((host, int(port)))
            reader.sendall(post("/v1/chat/completions", body))
            readers.append(reader)
        until(lambda: metrics(server.url)["num_requests_running"] == 4)
        until(lambda: idle(server))
        assert metrics(server.url)["generation_tokens_total"] < 4 * 1900
        for reader in readers:
            with pytest.raises(ConnectionResetError):
                read_all(reader)
    told = [line for line in server.log.read_text().splitlines() if "read nothing" in line]
    assert len(told) == 4
    assert all(json.loads(line)["request_id"].startswith("req_") for line in told)


class Stream(threading.Thread):
    """A stream, read to its end; ``begun`` once it has."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.lines: list[str] = []
        self.begun = threading.Event()
        self._url, self._body = url, body
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=60) as answer:
            for line in answer.iter_lines():
                self.lines += [line] if line else []
                self.begun.set()

    def end(self) -> list[str]:
        self.join(timeout=60)
        assert not self.is_alive()
        return self.lines


def test_a_stopped_core_turns_health_to_503_until_it_is_back(server: ServerProcess) -> None:
    stream = Stream(
        f"{server.base_url}/chat/completions", {**ASK, "stream": True, "max_tokens": 1900}
    )
    assert stream.begun.wait(60)
    core = server.core()
    core.send_signal(signal.SIGSTOP)
    try:
        lines = stream.end()
        assert "no sign of life for 1 s" in lines[-2]
        assert json.loads(lines[-2][6:])["error"]["code"] == "engine_unavailable"
        assert lines[-1] == "data: [DONE]"
        health = httpx.get(f"{server.url}/health")
        assert (health.status_code, health.json()["error"]["code"]) == (503, "engine_unavailable")
        refused = httpx.post(f"{server.base_url}/chat/completions", json=ASK)
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            503, "engine_unavailable",
        )  # fmt: skip
        assert "gnomon:api_tasks" in httpx.get(f"{server.url}/metrics").text
    finally:
        core.send_signal(signal.SIGCONT)
    until(lambda: httpx.get(f"{server.url}/health").status_code == 200)
    until(lambda: idle(server))
    answer = httpx.post(
        f"{server.base_url}/chat/completions", json={**ASK, "max_tokens": 2}, timeout=60
    )
    assert answer.json()["usage"]["completion_tokens"] == 2


def test_at_the_deadline_of_a_drain_everything_open_is_cut_with_an_error(
    server: ServerProcess, tmp_path: Path
) -> None:
    long = {"max_tokens": 1900}
    chat = Stream(f"{server.base_url}/chat/completions", {**ASK, **long, "stream": True})
    several = Stream(
        f"{server.base_url}/completions",
        {"model": NAME, "prompt": ["a", "b"], "ignore_eos": True, "stream": True, **long},
    )
    response = {"model": NAME, "input": "x", "ignore_eos": True, "max_output_tokens": 1900}
    background = Stream(
        f"{server.base_url}/responses", {**response, "stream": True, "background": True}
    )
    message_stream = Stream(
        f"{server.base_url}/messages",
        {"model": NAME, "messages": ASK["messages"], "stream": True, **long},
    )
    whole: list[httpx.Response] = []
    waiting = threading.Thread(
        target=lambda: whole.append(
            httpx.post(f"{server.base_url}/responses", json=response, timeout=60)
        ),
        daemon=True,
    )
    waiting.start()
    for stream in (chat, several, background, message_stream):
        assert stream.begun.wait(60)
    until(lambda: metrics(server.url)["num_requests_running"] >= 5)
    server.process.send_signal(signal.SIGTERM)
    for stream in (chat, several):
        lines = stream.end()
        assert json.loads(lines[-2][6:])["error"]["code"] == "engine_unavailable"
        assert lines[-1] == "data: [DONE]"
    assert [line for line in background.end() if line.startswith("event")][-2:] == [
        "event: response.failed", "event: error",
    ]  # fmt: skip
    ends = [line for line in message_stream.end() if line.startswith("event")]
    assert ends[-1] in ("event: error", "event: message_stop")  # it may end by itself
    waiting.join(timeout=60)
    assert (whole[0].status_code, whole[0].json()["error"]["code"]) == (503, "engine_unavailable")
    assert server.process.wait(timeout=60) == 0
    log = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert not [line for line in log if "exception" in line]
    assert {"time", "level", "logger", "process", "message"} <= set.intersection(*map(set, log))
