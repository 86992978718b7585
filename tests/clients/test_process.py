"""How the server process starts, ends and fails."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest
from tests.clients.servers import ServerProcess, gnomon_serve

SMALL = ("nano", "--max-model-len", "2048", "--kv-cache-memory-bytes", "33554432")


@pytest.fixture
def server(tmp_path: Path) -> contextlib.AbstractContextManager[ServerProcess]:
    return gnomon_serve(tmp_path / "server.log", *SMALL, "--shutdown-timeout", "0.1")


def endless(server: ServerProcess) -> tuple[threading.Thread, list[str]]:
    """A stream that goes on until the server ends it, and what came of it."""
    said: list[str] = []
    body = {
        "model": "nano",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 1900,
        "ignore_eos": True,
        "stream": True,
    }

    def read() -> None:
        url = f"{server.base_url}/chat/completions"
        with (
            contextlib.suppress(httpx.RemoteProtocolError),
            httpx.stream("POST", url, json=body, timeout=60) as answer,
        ):
            said.extend(answer.iter_lines())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not said and time.monotonic() < deadline:
        time.sleep(0.02)
    return thread, said


def test_sigterm_ends_everything_with_status_0(
    server: contextlib.AbstractContextManager[ServerProcess],
) -> None:
    with server as running:
        running.wait_ready()
        core = running.core()
        thread, said = endless(running)
        assert running.stop() == 0
        thread.join(timeout=30)
        assert not core.is_running() or core.status() == psutil.STATUS_ZOMBIE
        assert any(line.startswith('data: {"error"') for line in said)
        assert "Traceback" not in running.log.read_text()


def test_a_dead_core_is_told_to_clients_and_ends_the_server(
    server: contextlib.AbstractContextManager[ServerProcess],
) -> None:
    with server as running:
        running.wait_ready()
        thread, said = endless(running)
        running.core().send_signal(signal.SIGKILL)
        assert running.process.wait(timeout=60) not in (0, None)
        thread.join(timeout=30)
        assert any(line.startswith('data: {"error"') for line in said)
        log = running.log.read_text()
        assert "the engine died" in log
        assert "Traceback" not in log


def test_health_is_503_until_a_forward_has_run(
    server: contextlib.AbstractContextManager[ServerProcess],
) -> None:
    with server as running:
        port = None
        deadline = time.monotonic() + 60
        while port is None and time.monotonic() < deadline:
            listening = [
                c
                for c in psutil.Process(running.process.pid).net_connections()
                if c.status == "LISTEN"
            ]
            port = listening[0].laddr.port if listening else None
            time.sleep(0.01)
        first = httpx.get(f"http://127.0.0.1:{port}/health", timeout=30)
        assert first.status_code == 503
        assert first.json()["error"]["message"]
        running.wait_ready()
        assert httpx.get(f"{running.url}/health").status_code == 200


def test_sigterm_while_starting_leaves_nothing(
    server: contextlib.AbstractContextManager[ServerProcess],
) -> None:
    with server as running:
        process = psutil.Process(running.process.pid)
        deadline = time.monotonic() + 60
        while not process.children() and time.monotonic() < deadline:
            time.sleep(0.01)
        children = process.children(recursive=True)
        assert children
        assert running.stop() == 0
        assert not any(c.is_running() and c.status() != psutil.STATUS_ZOMBIE for c in children)


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (("nano", "--kv-cache-dtype", "int3"), "--kv-cache-dtype"),
        (("nano", "--tool-call-parser", "m9"), "m9"),
        (("nano", "--max-model-len", "99999999"), "max-model-len"),
        (("nano", "--port", "99999"), "--port"),
        (("no-such-model",), "no-such-model"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_sentence(flags: tuple[str, ...], part: str) -> None:
    command = [sys.executable, "-m", "gnomon", "serve", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (1, 2)
    assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "gnomon", "serve", *SMALL, "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert port in done.stderr
