from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI
from tests.clients.servers import ScriptedServer, ServerProcess, gnomon_serve, scripted_server

from gnomon.engine.models.loader import resolve_model


@pytest.fixture(scope="session")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A real server process with the nano model and MXFP4 caches."""
    log = tmp_path_factory.mktemp("nano") / "server.log"
    flags = ("--kv-cache-dtype", "mxfp4", "--max-num-batched-tokens", "512")
    with gnomon_serve(log, "nano", *flags, "--max-model-len", "4096") as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="session")
def client(nano: ServerProcess) -> OpenAI:
    """The real client, on the real server."""
    return OpenAI(base_url=nano.base_url, api_key="unused", max_retries=0, timeout=120)


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    """The real API over an engine that says what it is told."""
    with scripted_server(resolve_model("nano")) as server:
        yield server


@pytest.fixture(scope="session")
def told(scripted: ScriptedServer) -> OpenAI:
    """The real client, on the scripted engine."""
    return OpenAI(base_url=scripted.base_url, api_key="unused", max_retries=0, timeout=30)
