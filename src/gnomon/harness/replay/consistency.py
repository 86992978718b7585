"""Checks that a replay's records, its aggregate and its traces tell the same story."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gnomon.harness.nouns import Finding
from gnomon.harness.replay.parse import Export
from gnomon.harness.replay.results import CacheHits, RequestRecord
from gnomon.harness.replay.traces import ExpectedRequest

Json = Mapping[str, Any]

SERVER_CACHE_TOLERANCE = 0.02
"""Allowed difference between the client's and the server's hit rate: a preempted request is looked
up again by the server and reported once to the client."""


def findings(
    export: Export,
    aggregate: Json | None,
    expected: Sequence[ExpectedRequest],
    client_cache: CacheHits | None,
    server_cache: CacheHits | None,
) -> tuple[Finding, ...]:
    """All checks that apply to what is there.

    Args:
        export: the client's rows.
        aggregate: its ``profile_export_aiperf.json``, None where it wrote none.
        expected: what the traces ask for.
        client_cache: cached tokens by usage.
        server_cache: cached tokens by the server's counters.
    """
    records = export.records
    found = [
        Finding(
            "rows-readable",
            export.unreadable == 0,
            f"{len(records) + export.warmup} rows read, {export.unreadable} lines unreadable.",
        ),
        _exactly_the_traces(records, expected),
        _complete_records(records),
        _output_lengths(records, expected),
        *_aggregate(records, aggregate),
    ]
    if client_cache is not None and server_cache is not None:
        found.append(_same_cache(len(expected), records, client_cache, server_cache))
    return tuple(found)


def _exactly_the_traces(
    records: Sequence[RequestRecord], expected: Sequence[ExpectedRequest]
) -> Finding:
    seen = Counter((r.conversation_id, r.turn_index) for r in records)
    wanted = Counter((e.conversation_id, e.turn_index) for e in expected)
    missing, extra = wanted - seen, seen - wanted
    return Finding(
        "every-request-accounted",
        not missing and not extra,
        f"the traces hold {len(expected)} requests, the client recorded {len(records)}; "
        f"{missing.total()} missing{_few(missing)}, {extra.total()} unexpected{_few(extra)}.",
    )


def _few(keys: Mapping[tuple[str, int], int]) -> str:
    names = ", ".join(f"{name} turn {turn}" for name, turn in list(keys)[:3])
    return f" ({names})" if names else ""


def _complete_records(records: Sequence[RequestRecord]) -> Finding:
    """Whether each completed request carries what the report shows of it."""
    lacking = [
        r
        for r in records
        if r.completed
        and (
            None in (r.ttft_ms, r.latency_ms, r.input_tokens, r.output_tokens)
            or (r.itl_ms is None and (r.output_tokens or 0) > 1)
        )
    ]
    completed = sum(r.completed for r in records)
    return Finding(
        "timings-and-usage-present",
        completed > 0 and not lacking,
        f"{len(lacking)} of {completed} completed requests lack a "
        "time to first token, an inter-token latency, a latency or the server's token counts.",
    )


def _output_lengths(
    records: Sequence[RequestRecord], expected: Sequence[ExpectedRequest]
) -> Finding:
    """Whether answers have the length asked for: ignore_eos must have been honoured."""
    wanted = {(e.conversation_id, e.turn_index): e.output_tokens for e in expected}
    off = [
        (r, wanted[key])
        for r in records
        if r.completed
        and (key := (r.conversation_id, r.turn_index)) in wanted
        and r.output_tokens != wanted[key]
    ]
    example = (
        f" For example {off[0][0].conversation_id} turn {off[0][0].turn_index}: "
        f"{off[0][0].output_tokens} instead of {off[0][1]}."
        if off
        else ""
    )
    completed = sum(r.completed for r in records)
    return Finding(
        "output-lengths-as-asked",
        completed > 0 and not off,
        f"{len(off)} of {completed} completed requests have another "
        f"number of answer tokens than the trace asks for.{example}",
    )


def _aggregate(records: Sequence[RequestRecord], aggregate: Json | None) -> list[Finding]:
    if aggregate is None:
        return [Finding("aggregate-present", False, "the client wrote no aggregate.")]
    completed = [r for r in records if r.completed]
    failed = len(records) - len(completed)
    tokens = sum(r.output_tokens or 0 for r in completed)
    summed = sum(entry["count"] for entry in aggregate.get("error_summary") or ())
    pairs = (
        ("completed", len(completed), _avg(aggregate, "request_count")),
        ("failed", failed, _avg(aggregate, "error_request_count")),
        ("failed by kind", failed, summed),
        ("answer tokens", tokens, _avg(aggregate, "total_usage_completion_tokens")),
    )
    said = "; ".join(f"{what} {ours} and {theirs:g}" for what, ours, theirs in pairs)
    cancelled = bool(aggregate.get("was_cancelled"))
    complete = bool(aggregate.get("is_complete", not cancelled))
    return [
        Finding(
            "records-match-aggregate",
            all(ours == theirs for _, ours, theirs in pairs),
            f"counted from the records and by the client: {said}.",
        ),
        Finding(
            "client-calls-it-complete",
            complete and not cancelled,
            f"the client says is_complete {complete}, was_cancelled {cancelled}.",
        ),
    ]


def _avg(aggregate: Json, name: str) -> float:
    """A total of the aggregate; the client leaves out totals that are zero."""
    entry = aggregate.get(name)
    return float(entry["avg"]) if entry else 0.0


def _same_cache(
    expected: int, records: Sequence[RequestRecord], client: CacheHits, server: CacheHits
) -> Finding:
    """Whether both sides report the same cache; comparable only when every request completed."""
    completed = sum(r.completed for r in records)
    if completed != expected:
        return Finding(
            "cache-counters-agree",
            False,
            f"not comparable: {expected - completed} of {expected} requests report no usage.",
        )
    ours, theirs = client.rate or 0.0, server.rate or 0.0
    return Finding(
        "cache-counters-agree",
        abs(ours - theirs) <= SERVER_CACHE_TOLERANCE,
        f"usage says {client.hit_tokens} of {client.queried_tokens} prompt tokens were cached, "
        f"the server's counters say {server.hit_tokens} of {server.queried_tokens}.",
    )
