"""Every backend passes the same tests: add one to BACKENDS and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gnomon.engine.attention.backend import AttentionBackend
from gnomon.engine.attention.reference.backend import ReferenceBackend

BACKENDS: dict[str, Callable[[], AttentionBackend]] = {"reference": ReferenceBackend}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    return BACKENDS[request.param]()
