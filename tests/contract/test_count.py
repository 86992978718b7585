"""How many cases the contract has, counted as unique cases by mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.contract import features, refusals, test_packets, test_usage

LEAST = 250


def test_the_contract_has_enough_cases(
    record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    served, refused = len(features.CASES), len(refusals.CASES)
    usage = len(test_usage.CHATS) + len(test_usage.PROMPTS)
    packets = len(test_packets.TEXTS) + len(test_packets.REPLIES)
    counts = {"served": served, "refused": refused, "usage": usage, "packets": packets}
    for name, count in counts.items():
        record_property(name, count)
    with capsys.disabled():
        told = ", ".join(f"{count} {name}" for name, count in counts.items())
        print(f"\ncontract: {told}; each whole and streamed")
    assert served + refused >= LEAST
    assert len(set(features.CASES)) == served
    assert len(set(refusals.CASES)) == refused
