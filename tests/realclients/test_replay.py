"""The real AIPerf against the scripted server: whole, faulty, stopped."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gnomon.harness.replay.aiperf import run_replay
from gnomon.harness.replay.results import ReplayResult
from gnomon.harness.replay.spec import GeneratedTraces, ReplaySpec

pytestmark = [pytest.mark.clients, pytest.mark.timeout(200)]

SMALL = GeneratedTraces(sessions=2, turns=3, max_input_tokens=1500)
KEY = "a-key-that-must-not-leak"


@dataclass(frozen=True)
class Replayed:
    result: ReplayResult
    out: Path
    said: list[str]
    bodies: list[dict[str, Any]]


@pytest.fixture(scope="module")
def replay(
    start_fake: Any, tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Replayed]:
    def go(*flags: str, cancel_when: Callable[[str], bool] | None = None, **spec: Any) -> Replayed:
        out = tmp_path_factory.mktemp("replay") / "out"
        said: list[str] = []
        cancel = threading.Event()

        def progress(line: str) -> None:
            said.append(line)
            if cancel_when is not None and cancel_when(line):
                cancel.set()

        with start_fake(*flags) as server:
            result = run_replay(
                ReplaySpec(traces=SMALL, **spec), server, tokenizer_dir, out, progress, cancel
            )
            try:
                entries = httpx.get(f"{server.origin}/fake/requests", timeout=10).json()
            except httpx.HTTPError:  # the fault was to die
                entries = []
        return Replayed(result, out, said, [entry["body"] for entry in entries])

    return go


@pytest.fixture(scope="module")
def whole(replay: Callable[..., Replayed]) -> Replayed:
    return replay("--ttft-ms", "40", "--itl-ms", "4")


def left_of(result: ReplayResult) -> list[int]:
    """Live processes that inherited the replay's environment, wherever they hide."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HF_HOME") == result.env["HF_HOME"]:
                found.append(process.pid)
    return found


def test_every_request_of_the_traces_completes_once(whole: Replayed) -> None:
    counts = whole.result.counts
    assert whole.result.ok, whole.result
    assert counts.expected == counts.recorded == counts.completed == SMALL.expected_requests
    assert (counts.errored, counts.cancelled, counts.missing) == (0, 0, 0)
    assert len(whole.bodies) == SMALL.expected_requests


def test_every_finding_of_a_whole_replay_holds(whole: Replayed) -> None:
    assert [f for f in whole.result.findings if not f.passed] == []
    assert {f.name for f in whole.result.findings} >= {
        "every-request-accounted",
        "records-match-aggregate",
        "output-lengths-as-asked",
        "cache-counters-agree",
    }


def test_requests_stream_with_usage_and_a_fixed_length(whole: Replayed) -> None:
    for body in whole.bodies:
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert body["ignore_eos"] is True
        assert body["max_completion_tokens"] >= SMALL.min_output_tokens


def test_assistant_turns_are_canned_and_not_what_the_server_said(whole: Replayed) -> None:
    turns = [m for body in whole.bodies for m in body["messages"] if m["role"] == "assistant"]
    assert turns
    assert not any("word0" in turn["content"] for turn in turns)


def test_sub_agents_are_replayed(whole: Replayed) -> None:
    depths = [r.agent_depth for r in whole.result.records]
    assert depths.count(1) == 2 * SMALL.sessions


def test_timings_are_those_of_the_server(whole: Replayed) -> None:
    for record in whole.result.records:
        assert record.ttft_ms is not None
        assert record.ttft_ms >= 40
        assert record.itl_ms is not None
        assert record.itl_ms >= 3
        assert record.latency_ms is not None
        assert record.latency_ms >= record.ttft_ms


def test_growing_sessions_hit_the_prefix_cache_as_both_sides_say(whole: Replayed) -> None:
    client, server = whole.result.client_cache, whole.result.server_cache
    assert client is not None
    assert server is not None
    assert 0 < client.hit_tokens == server.hit_tokens
    assert client.queried_tokens == server.queried_tokens


def test_the_time_series_holds_every_token(whole: Replayed) -> None:
    result = whole.result
    tokens = sum(s.output_tokens_per_s * result.slice_s for s in result.slices)
    assert tokens == pytest.approx(sum(r.output_tokens or 0 for r in result.records))


def test_the_api_key_is_in_no_artifact(whole: Replayed) -> None:
    assert KEY not in " ".join(whole.result.argv)
    for path in whole.out.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path


def test_progress_counts_requests(whole: Replayed) -> None:
    total = SMALL.expected_requests
    assert f"{total} of {total} requests" in whole.said


@pytest.fixture(scope="module")
def faulty(replay: Callable[..., Replayed]) -> Replayed:
    return replay("--fault", "500", "--fault-every", "4")


def test_server_errors_are_counted_and_keep_their_code(faulty: Replayed) -> None:
    result = faulty.result
    assert result.reason is None
    assert not result.ok
    assert result.counts.errored == 3
    assert result.counts.completed == SMALL.expected_requests - 3
    assert all((r.error or "").startswith("500 ") for r in result.records if not r.completed)


def test_errors_agree_with_the_clients_aggregate(faulty: Replayed) -> None:
    findings = {f.name: f.passed for f in faulty.result.findings}
    assert findings["records-match-aggregate"]
    assert findings["every-request-accounted"]
    assert not findings["cache-counters-agree"]


def test_a_server_that_hangs_costs_time_outs_and_not_the_replay(
    replay: Callable[..., Replayed],
) -> None:
    result = replay(
        "--fault", "hang", "--fault-every", "5", "--fault-count", "1", request_timeout_s=2.0
    ).result
    assert result.reason is None
    assert result.counts.errored == 1
    assert result.counts.recorded == SMALL.expected_requests
    (failed,) = [r for r in result.records if not r.completed]
    assert "TimeoutError" in (failed.error or "")


def test_a_server_that_dies_midway_leaves_every_request_accounted(
    replay: Callable[..., Replayed],
) -> None:
    result = replay("--fault", "exit", "--fault-after", "4").result
    assert result.counts.errored > 0
    assert result.counts.completed + result.counts.errored == result.counts.recorded
    assert not result.ok


def test_a_cancelled_replay_says_so_and_leaves_nothing_running(
    replay: Callable[..., Replayed],
) -> None:
    result = replay("--itl-ms", "200", cancel_when=lambda line: line.startswith("1 of")).result
    assert result.was_cancelled
    assert result.reason == "the replay was cancelled"
    assert result.exit_code is None
    assert 0 < result.counts.recorded < SMALL.expected_requests
    assert result.counts.missing > 0
    assert left_of(result) == []


def test_a_replay_that_takes_too_long_ends_at_its_deadline(
    replay: Callable[..., Replayed],
) -> None:
    result = replay("--fault", "hang", deadline_s=3.0).result
    assert result.was_cancelled
    assert result.reason == "the replay did not end within its deadline of 3 s"
    assert left_of(result) == []
