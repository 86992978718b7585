"""What every test shares: tests whose surroundings are missing are named as not run."""

from __future__ import annotations

import os
import shutil
from collections import Counter

import pytest

# Triton reads this once, when whichever test comes first imports it, be it through xgrammar.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

NOT_RUN = pytest.StashKey[Counter[str]]()


def missing() -> dict[str, str]:
    """Markers whose tests cannot run here, each with the reason."""
    from gnomon.harness.clients.catalogue import CLIENTS
    from gnomon.harness.clients.environment import find

    absent: dict[str, str] = {}
    if shutil.which("chromium") is None:
        absent["browser"] = "no chromium on the PATH"
    if shutil.which("nvidia-smi") is None:
        absent["gpu"] = "no NVIDIA GPU"
    lacking = [client.name for client in CLIENTS.values() if find(client) is None]
    if lacking:
        absent["clients"] = f"run `gnomon clients install` first ({', '.join(lacking)} missing)"
    return absent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what cannot run here; a skip would look like a decision about the test."""
    absent = missing()
    counts: Counter[str] = Counter()
    kept, dropped = [], []
    for item in items:
        reason = next(
            (f"{mark}: {why}" for mark, why in absent.items() if item.get_closest_marker(mark)),
            None,
        )
        if reason is None:
            kept.append(item)
        else:
            dropped.append(item)
            counts[reason] += 1
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept
    config.stash[NOT_RUN] = counts


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not run, so that a green line cannot hide it."""
    for reason, count in terminalreporter.config.stash.get(NOT_RUN, Counter()).items():
        terminalreporter.write_line(f"NOT RUN: {count} tests ({reason})", yellow=True)
