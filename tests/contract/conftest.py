from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from anthropic import Anthropic
from benchmarks.prompts import Counter
from openai import OpenAI
from tests.clients.servers import ScriptedServer, ServerProcess, gnomon_serve, scripted_server
from tests.contract.asking import Asker
from tests.contract.features import SECRET

from gnomon.engine.models.loader import resolve_model


@pytest.fixture(scope="session")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The one real server that every case is put to."""
    log = tmp_path_factory.mktemp("contract") / "server.log"
    flags = ("--kv-cache-dtype", "mxfp4", "--max-model-len", "2048", "--reasoning-key", SECRET)
    with gnomon_serve(log, "nano", *flags) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="session")
def asker(nano: ServerProcess) -> Iterator[Asker]:
    """Asks the real server, each question once."""
    with httpx.Client(base_url=nano.url, timeout=60) as http:
        yield Asker(http)


@pytest.fixture(scope="session")
def client(nano: ServerProcess) -> OpenAI:
    """The real client, on the real server."""
    return OpenAI(base_url=nano.base_url, api_key="unused", max_retries=0, timeout=60)


@pytest.fixture(scope="session")
def anthropic_client(nano: ServerProcess) -> Anthropic:
    """Anthropic's client, on the real server."""
    return Anthropic(base_url=nano.url, api_key="unused", max_retries=0, timeout=60)


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    """The real API over an engine that says what it is told, for replies no random model makes."""
    with scripted_server(resolve_model("nano"), served_model_name=("nano",)) as server:
        yield server


@pytest.fixture(scope="session")
def counter() -> Counter:
    """Counts tokens without the server's code."""
    return Counter(resolve_model("nano"))
