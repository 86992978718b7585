import re
import subprocess
import sys

import pytest

from gnomon.harness.clients.catalogue import CLIENTS, Client, read_pins

EACH = pytest.mark.parametrize("client", CLIENTS.values(), ids=lambda c: c.name)


@EACH
def test_the_lock_pins_the_client_at_its_version(client: Client) -> None:
    assert client.pins[client.name] == client.version


@EACH
def test_every_package_of_a_lock_is_pinned_and_hashed(client: Client) -> None:
    requirements = [
        line for line in client.lock.splitlines() if line and not line.startswith((" ", "#"))
    ]
    for line in requirements:
        assert re.match(r"^[A-Za-z0-9._-]+==[^\s;]+( ; .*)?( \\)$", line), line
    assert client.lock.count("--hash=sha256:") >= len(requirements)


@EACH
def test_a_lock_names_no_index_and_no_host(client: Client) -> None:
    assert not re.search(r"://|--index|--find-links|--extra", client.lock)


def test_bfcl_is_lean_and_has_the_package_it_does_not_declare() -> None:
    pins = CLIENTS["bfcl-eval"].pins
    assert "soundfile" in pins
    assert not {"torch", "faiss-cpu", "sentence-transformers", "vllm"} & set(pins)


def test_pins_ignore_hashes_comments_and_later_markers() -> None:
    lock = "# a==0\nA.b==1.0 ; x \\\n    --hash=sha256:00\nc==2\nc==3 ; y\n"
    assert read_pins(lock) == {"a.b": "1.0", "c": "2"}


def test_listing_clients_needs_no_client() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "gnomon", "clients", "list"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for client in CLIENTS.values():
        assert f"{client.name} {client.version}" in listed


def test_an_unknown_client_is_a_sentence_and_not_a_traceback() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "gnomon", "clients", "install", "nope"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "no client named 'nope'" in result.stderr
    assert "Traceback" not in result.stderr
