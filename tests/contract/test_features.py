"""Every feature at every endpoint: whole, streamed, and the two compared."""

from __future__ import annotations

import pytest
from tests.contract.asking import MESSAGES, Asker, packets, said, selected, uncached
from tests.contract.features import CASES, FEATURES
from tests.contract.shapes import check_packets, check_whole

each = pytest.mark.parametrize(("path", "name"), CASES, ids=lambda value: value)


@pytest.fixture(scope="module", autouse=True)
def _answers(asker: Asker, request: pytest.FixtureRequest) -> None:
    """Ask what the selected tests will, together: a batch takes as long as one."""
    cases = selected(request, "path", "name")
    asker.ask_all((path, FEATURES[path][name]) for path, name in cases)


@each
def test_a_whole_answer_has_its_shape(asker: Asker, path: str, name: str) -> None:
    answer = asker.ask(path, FEATURES[path][name], stream=False)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    check_whole(path, answer.json())


@each
def test_a_stream_has_its_packets(asker: Asker, path: str, name: str) -> None:
    answer = asker.ask(path, FEATURES[path][name], stream=True)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    check_packets(path, packets(answer))


def repeats(path: str, name: str) -> bool:
    """Whether asking again gives the same answer; Anthropic's API has no seed."""
    return path != MESSAGES or not FEATURES[path][name].get("temperature")


@pytest.mark.parametrize(
    ("path", "name"), [case for case in CASES if repeats(*case)], ids=lambda value: value
)
def test_a_stream_says_what_the_whole_answer_says(asker: Asker, path: str, name: str) -> None:
    change = FEATURES[path][name]
    if change.get("seed", 0) is None:
        change = {**change, "seed": 3}
    whole = said(path, asker.ask(path, change, stream=False), stream=False)
    streamed = said(path, asker.ask(path, change, stream=True), stream=True)
    assert uncached(streamed) == uncached(whole)
