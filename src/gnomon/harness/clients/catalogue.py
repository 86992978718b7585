"""The clients the harness drives: exact versions, their locks, and what they cost to install."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

MEBIBYTE = 1 << 20

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)")


@dataclass(frozen=True)
class Client:
    """A real program that asks servers questions, kept away from gnomon's own packages.

    Attributes:
        name: of the client, of its lock and of its environment.
        version: exact.
        purpose: what the harness uses it for, in a few words.
        disk_bytes: of the environment once installed, rounded up.
        probe: Python statements that fail where the environment is unusable.
    """

    name: str
    version: str
    purpose: str
    disk_bytes: int
    probe: str

    @property
    def lock(self) -> str:
        """The lock file's text: every package pinned, with hashes."""
        return (files("gnomon.harness.clients") / "locks" / f"{self.name}.txt").read_text()

    @property
    def pins(self) -> Mapping[str, str]:
        """Version of each package in the lock."""
        return read_pins(self.lock)


AIPERF = Client(
    name="aiperf",
    version="0.13.0",
    purpose="replays agentic traces and times every request",
    disk_bytes=900 * MEBIBYTE,
    probe="import aiperf.cli",
)

BFCL = Client(
    name="bfcl-eval",
    version="2026.3.23",
    purpose="asks BFCL's tool-calling cases and judges the answers",
    disk_bytes=420 * MEBIBYTE,
    # Imports every handler, and so everything that a lean install could lack.
    probe="import bfcl_eval.constants.model_config",
)

CLIENTS: Mapping[str, Client] = {client.name: client for client in (AIPERF, BFCL)}
"""Every client by name."""


def read_pins(lock: str) -> dict[str, str]:
    """Package versions of a lock file in requirements format.

    A package pinned twice under different markers keeps its first version.
    """
    pins: dict[str, str] = {}
    for line in lock.splitlines():
        match = _PIN.match(line)
        if match:
            pins.setdefault(match.group(1).lower(), match.group(2))
    return pins
