"""Connections: heads and bodies that come slowly or wrong; methods, slashes, long prompts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.clients.servers import ScriptedServer, scripted_server

from gnomon.engine.models.loader import resolve_model
from gnomon.engine.serve import server as server_module
from gnomon.engine.serve.tokenizer import Tokenizer

STALL_S = 0.4
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def hasty() -> Iterator[ScriptedServer]:
    with scripted_server(resolve_model("nano"), stall_timeout_s=STALL_S) as server:
        yield server


@contextlib.contextmanager
def connection(server: ScriptedServer) -> Iterator[socket.socket]:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        yield sock


def answer(sock: socket.socket) -> tuple[int, dict[str, Any]]:
    """One answer with a length, whatever comes behind it."""
    read = b""
    while b"\r\n\r\n" not in read:
        part = sock.recv(65536)
        assert part, read
        read += part
    head, _, body = read.partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.lower().splitlines()
                  if line.startswith(b"content-length"))  # fmt: skip
    while len(body) < length:
        body += sock.recv(65536)
    return int(head.split()[1]), json.loads(body[:length])


def closed(sock: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return sock.recv(1) == b""
    return True


@pytest.mark.parametrize("part", [b"", b"G", b"GET /health HTTP/1.1\r\nhost: x\r\n"])
def test_a_head_that_does_not_come_is_a_408(hasty: ScriptedServer, part: bytes) -> None:
    with connection(hasty) as sock:
        sock.sendall(part)
        status, told = answer(sock)
        assert (status, told["error"]["code"]) == (408, "head_timeout")
        assert closed(sock)


def test_an_idle_connection_stays_but_not_with_half_a_head(hasty: ScriptedServer) -> None:
    with connection(hasty) as sock:
        sock.sendall(HEALTH)
        assert answer(sock)[0] == 200
        time.sleep(2 * STALL_S)
        sock.sendall(HEALTH)
        assert answer(sock)[0] == 200
        sock.sendall(HEALTH[:20])
        assert answer(sock)[0] == 408
        assert closed(sock)


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_http"),
        (b"GET /health\r\n\r\n", 400, "bad_http"),
        (b"GET /health HTTP/1.1\r\n\r\n", 400, "bad_http"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n", 400, "bad_http"),
        (POST + b"content-length: -5\r\n\r\n", 400, "bad_http"),
        (POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\n", 400, "bad_http"),
        (POST + b"content-length: 5\r\ntransfer-encoding: gzip\r\n\r\n", 400, "bad_http"),
        (POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400, "bad_http"),
        (b"PUT /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400,
         "bad_http"),
        (b"PUT /v1/models HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx\x00\x01\r\n\r\n", 405,
         "method_not_allowed"),
        (b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 70_000, 431, "head_too_large"),
        (b"GET /" + b"a" * 70_000, 431, "head_too_large"),
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused_in_the_api_s_shape(
    hasty: ScriptedServer,
    caplog: pytest.LogCaptureFixture,
    sent: bytes,
    status: int,
    code: str,
) -> None:
    with connection(hasty) as sock:
        sock.sendall(sent)
        found, told = answer(sock)
        assert (found, told["error"]["code"]) == (status, code)
        if status != 405:  # that one is an answer to a request, and what follows is not
            assert closed(sock)
    with connection(hasty) as sock:
        sock.sendall(HEALTH)
        assert answer(sock)[0] == 200
    assert not [record for record in caplog.records if record.exc_info]


def test_what_is_no_http_has_a_request_id_too(hasty: ScriptedServer) -> None:
    with connection(hasty) as sock:
        sock.sendall(b"GET /health\r\n\r\n")
        assert b"\r\nx-request-id: req_" in sock.recv(4096)


def test_a_body_that_comes_in_drops_is_a_408(hasty: ScriptedServer) -> None:
    with connection(hasty) as sock:
        sock.sendall(POST + b"content-length: 1000\r\n\r\n")
        sent = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                for _ in range(1000):
                    sock.sendall(b" ")
                    if sent.wait(STALL_S / 10):
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        status, told = answer(sock)
        sent.set()
        thread.join(timeout=20)
        assert (status, told["error"]["code"]) == (408, "body_timeout")


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_SPARE_CONNECTIONS", 7)
    with scripted_server(resolve_model("nano"), max_open_requests=1) as server:
        held = [socket.create_connection(address(server)) for _ in range(8)]
        try:
            with connection(server) as sock:
                assert closed(sock)
            held.pop().close()
            done = threading.Event()
            while not done.wait(0.05):
                with connection(server) as sock, contextlib.suppress(OSError, AssertionError):
                    sock.sendall(HEALTH)
                    if answer(sock)[0] == 200:
                        done.set()
        finally:
            for sock in held:
                sock.close()


def address(server: ScriptedServer) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


@pytest.mark.parametrize(
    "path", ["/health", "/v1/models", "/v1/models/scripted", "/version", "/metrics", "/server_info"]
)
def test_head_is_answered_where_get_is(hasty: ScriptedServer, path: str) -> None:
    found = httpx.head(hasty.url + path)
    assert (found.status_code, found.content) == (200, b"")
    assert int(found.headers["content-length"]) > 0


def test_nothing_is_redirected(hasty: ScriptedServer) -> None:
    for method, path, status in (
        ("GET", "/v1/models/", 404),
        ("POST", "/v1/models/", 405),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/health/", 404),
        ("GET", "//health", 404),
        ("HEAD", "/v1/chat/completions", 405),
        ("PUT", "/v1/chat/completions", 405),
    ):
        assert httpx.request(method, hasty.url + path).status_code == status, path


class Waiting(Tokenizer):
    """A tokenizer that takes as long as a very long prompt would."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.__dict__.update(tokenizer.__dict__)
        self.go_on = threading.Event()

    def encode(self, text: str) -> list[int]:
        self.go_on.wait(20)
        return super().encode(text)


@pytest.mark.parametrize("path", ["chat/completions", "responses", "completions", "messages"])
def test_the_time_of_a_request_covers_tokenising_which_holds_up_nobody(path: str) -> None:
    with scripted_server(resolve_model("nano"), request_timeout_s=0.5) as server:
        slow = Waiting(server.served.tokenizer)
        object.__setattr__(server.served, "tokenizer", slow)
        body = {
            "chat/completions": {"messages": [{"role": "user", "content": "x"}]},
            "messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
            "responses": {"input": "x"},
            "completions": {"prompt": "x"},
        }[path]
        found: list[httpx.Response] = []

        async def main() -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=20) as http:
                many = [
                    asyncio.ensure_future(
                        http.post(f"/v1/{path}", json={"model": "scripted", **body})
                    )
                    for _ in range(12)
                ]
                while not all(one.done() for one in many):
                    assert (await http.get("/health")).status_code == 200
                found.extend([await one for one in many])

        asyncio.run(main())
        slow.go_on.set()
        codes = {(one.status_code, one.json()["error"]["code"]) for one in found}
        assert codes == {(504, "request_timeout")}
        server.say("hi")
        assert httpx.post(
            f"{server.base_url}/{path}", json={"model": "scripted", **body}
        ).is_success


def test_thirty_megabytes_are_refused_without_being_tokenised(hasty: ScriptedServer) -> None:
    slow = Waiting(hasty.served.tokenizer)
    before = hasty.served.tokenizer
    object.__setattr__(hasty.served, "tokenizer", slow)
    try:
        for path, body in (
            ("completions", {"prompt": "word " * 6_000_000}),
            ("responses", {"input": "word " * 6_000_000}),
        ):
            answered = httpx.post(f"{hasty.base_url}/{path}", json={"model": "scripted", **body})
            error = answered.json()["error"]
            assert (error["code"], error["param"]) == ("context_length_exceeded", next(iter(body)))
    finally:
        object.__setattr__(hasty.served, "tokenizer", before)
