"""A server is gone when the supervisor says so, whatever the server does to stay."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnomon.harness.adapters.protocol import Command
from gnomon.harness.cancel import CancelToken, Cause, call_until_cancelled
from gnomon.harness.errors import RunCancelled, ServerNotReady, StageFailed
from gnomon.harness.launch import processes
from gnomon.harness.launch.ports import free_port, is_listening
from gnomon.harness.launch.readiness import HealthWatch, wait_until_healthy
from gnomon.harness.launch.supervisor import Server, describe_exit, log_tail
from gnomon.harness.nouns import ServerAddress

FAKE = Path(__file__).parents[1] / "fakes" / "openai_server.py"

OBEDIENT = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("up", flush=True)
time.sleep(600)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""
# Leaves a grandchild in another session, with nothing but its environment to know it by.
DESERTER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
print("up", child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def cancel() -> CancelToken:
    return CancelToken()


@pytest.fixture
def start(tmp_path: Path, cancel: CancelToken) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def make(*argv: str, port: int | None = None) -> Server:
        address = ServerAddress("127.0.0.1", port or free_port(), "m")
        server = Server(Command(argv, {}), address, tmp_path / "log.txt", cancel)
        servers.append(server)
        server.start()
        return server

    yield make
    for server in servers:
        server.stop(0.0)


def up(server: Server) -> str:
    """Wait for the program's first line."""
    while not (lines := log_tail(server.log)):
        time.sleep(0.02)
    return lines[-1]


def test_an_obedient_server_ends_gracefully(
    start: Callable[..., Server], cancel: CancelToken
) -> None:
    server = start(sys.executable, "-c", OBEDIENT)
    up(server)
    ended = server.stop(10.0)
    assert ended.graceful
    assert ended.clean
    assert not cancel.event.is_set()  # an end that was asked for is no death


def test_a_server_that_ignores_sigterm_is_killed_and_named(start: Callable[..., Server]) -> None:
    server = start(sys.executable, "-c", STUBBORN)
    up(server)
    ended = server.stop(0.3)
    assert ended.clean
    assert not ended.graceful
    assert ended.exit_code == -signal.SIGKILL
    assert [remnant.pid for remnant in ended.killed] == [server.pid]


def test_a_child_that_left_the_group_is_found_by_its_mark(start: Callable[..., Server]) -> None:
    server = start(sys.executable, "-c", DESERTER)
    child = int(up(server).split()[1])
    assert os.getsid(child) != server.pid
    ended = server.stop(5.0)
    assert child in {remnant.pid for remnant in ended.killed}
    assert ended.clean


def test_a_port_that_stays_open_is_no_clean_teardown(start: Callable[..., Server]) -> None:
    import socket

    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", 0))
        foreign.listen()
        server = start(sys.executable, "-c", OBEDIENT, port=foreign.getsockname()[1])
        up(server)
        ended = server.stop(5.0)
    assert ended.port_open
    assert not ended.clean


def test_a_death_cancels_the_run_with_its_last_words(
    start: Callable[..., Server], cancel: CancelToken
) -> None:
    server = start(sys.executable, "-c", "print('cannot allocate 96 MiB'); raise SystemExit(3)")
    assert cancel.event.wait(10)
    assert cancel.cause is Cause.SERVER_DIED
    assert f"the server process {server.pid} ended with exit code 3" in cancel.reason
    assert "cannot allocate 96 MiB" in cancel.reason
    ended = server.stop(1.0)
    assert not ended.asked
    assert ended.clean


def test_stopping_twice_is_harmless(start: Callable[..., Server]) -> None:
    server = start(sys.executable, "-c", OBEDIENT)
    up(server)
    server.stop(5.0)
    assert server.stop(5.0).clean


def test_a_program_that_does_not_exist_cannot_be_started(start: Callable[..., Server]) -> None:
    with pytest.raises(StageFailed, match="cannot start /no/such/program"):
        start("/no/such/program")


def test_waiting_for_health_has_a_deadline_and_shows_the_log(
    start: Callable[..., Server], cancel: CancelToken
) -> None:
    server = start(sys.executable, "-c", OBEDIENT)
    up(server)
    with pytest.raises(ServerNotReady, match=r"within 0.5 s(.|\n)*up"):
        wait_until_healthy(server, "/health", 0.5, cancel, lambda _: None)


def test_waiting_for_health_ends_with_the_server(
    start: Callable[..., Server], cancel: CancelToken
) -> None:
    server = start(sys.executable, "-c", "raise SystemExit(9)")
    with pytest.raises(RunCancelled, match="exit code 9"):
        wait_until_healthy(server, "/health", 60, cancel, lambda _: None)


def test_a_living_server_that_declares_itself_dead_cancels_the_run(
    start: Callable[..., Server], cancel: CancelToken
) -> None:
    port = free_port()
    server = start(
        *(sys.executable, str(FAKE), "--port", str(port), "--startup-s", "3600"), port=port
    )
    while not is_listening("127.0.0.1", port):
        time.sleep(0.05)
    with HealthWatch(server, "/health", cancel):
        assert cancel.event.wait(20)
    assert cancel.cause is Cause.SERVER_DIED
    assert "declared itself unhealthy" in cancel.reason
    assert "503" in cancel.reason


def test_a_ctrl_c_in_the_terminal_does_not_reach_the_server(start: Callable[..., Server]) -> None:
    server = start(sys.executable, "-c", OBEDIENT)
    assert server.pid is not None
    assert os.getpgid(server.pid) == server.pid != os.getpgid(0)


def test_the_first_cause_of_a_cancel_is_kept(cancel: CancelToken) -> None:
    cancel.cancel(Cause.SERVER_DIED, "first")
    cancel.cancel(Cause.INTERRUPTED, "second")
    assert (cancel.cause, cancel.reason) == (Cause.SERVER_DIED, "first")
    with pytest.raises(RunCancelled, match="first"):
        cancel.check()


def test_a_blocking_call_is_left_behind_when_the_run_is_cancelled(cancel: CancelToken) -> None:
    cancel.cancel(Cause.INTERRUPTED, "enough")
    with pytest.raises(RunCancelled, match="enough"):
        call_until_cancelled(lambda: time.sleep(2), cancel, 60)


def test_what_a_call_returns_or_raises_comes_through(cancel: CancelToken) -> None:
    assert call_until_cancelled(lambda: 7, cancel, 5) == 7
    with pytest.raises(ZeroDivisionError):
        call_until_cancelled(lambda: 1 // 0, cancel, 5)
    with pytest.raises(TimeoutError, match="no answer"):
        call_until_cancelled(lambda: time.sleep(2), cancel, 0.1)


def test_a_zombie_does_not_count_as_left() -> None:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os._exit(0)
    time.sleep(0.1)
    assert processes.members(pid, "no mark") == []
    os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "signal 9 (SIGKILL)"), (-99, "signal 99")],
)
def test_an_exit_code_is_said_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


def test_the_tail_of_a_log_survives_size_and_bad_bytes(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"x\n" * 100_000 + b"\xff\xfe last\n\n")
    assert log_tail(log, 1) == ["\ufffd\ufffd last"]
    assert log_tail(tmp_path / "none") == []
