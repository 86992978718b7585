"""A recorded replay of 18 requests of which the server failed every fourth, and edits of it."""

import json
from pathlib import Path

import pytest

from gnomon.harness.replay.aiperf import cached_by_usage, count
from gnomon.harness.replay.consistency import findings
from gnomon.harness.replay.parse import Export, parse_rows
from gnomon.harness.replay.results import CacheHits
from gnomon.harness.replay.series import time_slices
from gnomon.harness.replay.spec import GeneratedTraces
from gnomon.harness.replay.traces import expected_requests, generate

DATA = Path(__file__).with_name("data")
ROWS = (DATA / "five_errors.jsonl").read_text().splitlines()
AGGREGATE = json.loads((DATA / "five_errors_aggregate.json").read_text())
TRACES = GeneratedTraces(
    seed=7,
    sessions=3,
    turns=4,
    min_input_tokens=600,
    max_input_tokens=2400,
    min_output_tokens=8,
    max_output_tokens=32,
)
EXPECTED = [request for trace in generate(TRACES) for request in expected_requests(trace)]


def edited(row: str, **metadata: object) -> str:
    loaded = json.loads(row)
    loaded["metadata"] |= metadata
    return json.dumps(loaded)


def verdict(export: Export, name: str, aggregate: dict | None = AGGREGATE) -> bool:
    found = findings(export, aggregate, EXPECTED, None, None)
    return {f.name: f.passed for f in found}[name]


def test_every_row_is_completed_errored_or_cancelled() -> None:
    counts = count(parse_rows(ROWS), len(EXPECTED))
    assert (counts.expected, counts.recorded) == (18, 18)
    assert (counts.completed, counts.errored, counts.cancelled, counts.missing) == (13, 5, 0, 0)


def test_records_agree_with_the_clients_own_aggregate() -> None:
    export = parse_rows(ROWS)
    for name in (
        "rows-readable",
        "every-request-accounted",
        "records-match-aggregate",
        "timings-and-usage-present",
        "output-lengths-as-asked",
        "client-calls-it-complete",
    ):
        assert verdict(export, name), name


def test_warm_up_rows_are_counted_and_left_out() -> None:
    rows = [edited(ROWS[0], benchmark_phase="warmup"), *ROWS]
    export = parse_rows(rows)
    assert (len(export.records), export.warmup) == (18, 1)
    assert verdict(export, "every-request-accounted")


def test_a_lost_row_is_named() -> None:
    export = parse_rows(ROWS[1:])
    assert count(export, len(EXPECTED)).missing == 1
    assert not verdict(export, "every-request-accounted")
    assert not verdict(export, "records-match-aggregate")


def test_a_row_that_comes_twice_is_not_hidden_by_one_that_is_lost() -> None:
    export = parse_rows([*ROWS[:-1], ROWS[0]])
    assert len(export.records) == len(EXPECTED)
    assert not verdict(export, "every-request-accounted")


def test_half_a_line_is_counted() -> None:
    export = parse_rows([*ROWS, ROWS[0][:100]])
    assert export.unreadable == 1
    assert not verdict(export, "rows-readable")


def test_a_cancelled_request_is_neither_completed_nor_an_error() -> None:
    completed = next(i for i, row in enumerate(ROWS) if '"error"' not in row)
    rows = list(ROWS)
    rows[completed] = edited(rows[completed], was_cancelled=True)
    counts = count(parse_rows(rows), len(EXPECTED))
    assert (counts.completed, counts.errored, counts.cancelled) == (12, 5, 1)


def test_an_answer_of_another_length_is_found() -> None:
    rows = [json.loads(row) for row in ROWS]
    next(r for r in rows if r["metrics"])["metrics"]["usage_completion_tokens"]["value"] += 1
    assert not verdict(parse_rows(map(json.dumps, rows)), "output-lengths-as-asked")


def test_a_completed_request_without_usage_is_found() -> None:
    rows = [json.loads(row) for row in ROWS]
    del next(r for r in rows if r["metrics"])["metrics"]["usage_prompt_tokens"]
    assert not verdict(parse_rows(map(json.dumps, rows)), "timings-and-usage-present")


def test_a_client_that_cancelled_itself_is_found() -> None:
    export = parse_rows(ROWS)
    cancelled = AGGREGATE | {"was_cancelled": True, "is_complete": False}
    assert not verdict(export, "client-calls-it-complete", cancelled)


def test_a_missing_aggregate_is_a_failed_check() -> None:
    assert not verdict(parse_rows(ROWS), "aggregate-present", None)


def test_nothing_at_all_passes_no_check_of_its_contents() -> None:
    empty = parse_rows([])
    assert not verdict(empty, "every-request-accounted", None)
    assert not verdict(empty, "timings-and-usage-present", None)
    assert not verdict(empty, "output-lengths-as-asked", None)
    assert time_slices(empty.records, 1.0) == ()


def test_errors_are_one_line_with_code_and_message() -> None:
    errors = {r.error for r in parse_rows(ROWS).records if r.error is not None}
    (only,) = errors
    assert only.startswith("500 Internal Server Error")
    assert "\n" not in only


def test_records_start_at_zero_and_are_in_the_order_sent() -> None:
    starts = [r.start_s for r in parse_rows(ROWS).records]
    assert starts[0] == 0.0
    assert starts == sorted(starts)


def test_cached_tokens_come_from_completed_requests_only() -> None:
    records = parse_rows(ROWS).records
    cache = cached_by_usage(records)
    assert cache is not None
    assert cache.hit_tokens == sum(r.cached_tokens or 0 for r in records if r.completed)
    assert cache.queried_tokens == AGGREGATE["total_usage_prompt_tokens"]["avg"]


def test_a_server_that_never_reports_cached_tokens_has_no_hit_rate() -> None:
    rows = [json.loads(row) for row in ROWS]
    for row in rows:
        row["metrics"].pop("usage_prompt_cache_read_tokens", None)
    assert cached_by_usage(parse_rows(map(json.dumps, rows)).records) is None


@pytest.mark.parametrize(
    ("server", "passed"),
    [(CacheHits(500, 1000, "s"), True), (CacheHits(600, 1000, "s"), False)],
)
def test_the_servers_cache_counters_must_tell_what_usage_tells(
    server: CacheHits, passed: bool
) -> None:
    whole = [row for row in ROWS if '"error"' not in row]
    export = parse_rows(whole)
    seen = {(r.conversation_id, r.turn_index) for r in export.records}
    expected = [e for e in EXPECTED if (e.conversation_id, e.turn_index) in seen]
    found = findings(export, None, expected, CacheHits(500, 1000, "c"), server)
    assert {f.name: f.passed for f in found}["cache-counters-agree"] is passed


def test_caches_are_not_compared_where_a_request_failed() -> None:
    same = CacheHits(500, 1000, "x")
    found = findings(parse_rows(ROWS), AGGREGATE, EXPECTED, same, same)
    finding = next(f for f in found if f.name == "cache-counters-agree")
    assert not finding.passed
    assert "5 of 18" in finding.evidence


@pytest.mark.parametrize("width_s", [0.1, 0.25, 1.0, 60.0])
def test_slices_hold_every_token_and_every_request_once(width_s: float) -> None:
    records = parse_rows(ROWS).records
    slices = time_slices(records, width_s)
    tokens = sum(s.output_tokens_per_s * width_s for s in slices)
    assert tokens == pytest.approx(sum(r.output_tokens or 0 for r in records))
    assert sum(s.completed for s in slices) == 13
    assert sum(s.failed for s in slices) == 5
    busy = sum(s.in_flight * width_s for s in slices)
    assert busy == pytest.approx(sum(r.end_s - r.start_s for r in records))
