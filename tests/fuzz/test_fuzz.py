"""No body is a 500, a hang or a leak; the long run is ``python -m benchmarks.fuzz``."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from benchmarks.bodies import GOOD, body
from benchmarks.fuzz import Findings, run
from benchmarks.vitals import leaks
from tests.clients.servers import ServerProcess, gnomon_serve

BODIES = 500


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("fuzz") / "server.log"
    flags = ("--kv-cache-dtype", "mxfp4", "--max-model-len", "384")
    with gnomon_serve(log, "nano", *flags) as running:
        running.wait_ready()
        yield running


def test_no_body_breaks_the_server(server: ServerProcess) -> None:
    found, before, after = run(server.process.pid, server.url, BODIES, seed=1)
    assert found.wrong == []
    assert found.bodies == BODIES
    assert found.targets >= BODIES // 10
    assert found.connections >= BODIES // 20
    assert answered(found) >= {"200", "400"}
    assert leaks(before, after, memory_mib=64) == []
    assert "Traceback" not in server.log.read_text()


def answered(found: Findings) -> set[str]:
    return {key.split()[-1] for key in found.statuses}


@pytest.mark.parametrize("path", GOOD)
def test_the_same_seed_makes_the_same_bodies(path: str) -> None:
    made = [[body(path, random.Random(seed)) for seed in range(50)] for _ in range(2)]
    assert made[0] == made[1]
    assert len(set(made[0])) > 40
