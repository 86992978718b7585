from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI
from tests.clients.servers import ServerProcess, gnomon_serve


@pytest.fixture(scope="session")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A real server with random weights, and room for calls that such weights spell slowly."""
    log = tmp_path_factory.mktemp("nano") / "server.log"
    flags = ("--max-num-batched-tokens", "2048", "--max-num-seqs", "32", "--max-model-len", "8192")
    with gnomon_serve(log, "nano", *flags) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="session")
def client(nano: ServerProcess) -> OpenAI:
    """The real client."""
    return OpenAI(base_url=nano.base_url, api_key="unused", max_retries=0, timeout=240)
