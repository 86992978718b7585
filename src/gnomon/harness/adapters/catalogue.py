"""Every engine the harness knows."""

from __future__ import annotations

from gnomon.harness.adapters.gnomon import GnomonAdapter
from gnomon.harness.adapters.protocol import EngineAdapter

ADAPTERS: dict[str, EngineAdapter] = {"gnomon": GnomonAdapter()}
