"""Reads AIPerf's per-request export; nothing in it is dropped without being counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon.harness.replay.results import RequestRecord

PHASE = "profiling"
"""The measured phase; rows of any other (warm-up) are counted and left out."""

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Export:
    """The rows of a ``profile_export.jsonl``.

    Attributes:
        records: of the measured phase, in the order sent.
        warmup: rows of other phases.
        unreadable: lines that are not a row; a client that was killed may leave half a line.
    """

    records: tuple[RequestRecord, ...]
    warmup: int
    unreadable: int


def read_export(path: Path) -> Export:
    """Read an export; a missing file has no rows."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return parse_rows(lines)


def parse_rows(lines: Iterable[str]) -> Export:
    """Sort an export's lines into measured records, other phases and unreadable ones."""
    rows: list[Json] = []
    warmup = unreadable = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            measured = row["metadata"]["benchmark_phase"] == PHASE
            int(row["metadata"]["request_end_ns"])
        except (ValueError, KeyError, TypeError):
            unreadable += 1
            continue
        if measured:
            rows.append(row)
        else:
            warmup += 1
    return Export(_records(rows), warmup, unreadable)


def _records(rows: Sequence[Json]) -> tuple[RequestRecord, ...]:
    starts = [_start_ns(row["metadata"]) for row in rows]
    zero = min(starts, default=0)
    ordered = sorted(zip(starts, rows, strict=True), key=lambda pair: pair[0])
    return tuple(_record(row, start, zero) for start, row in ordered)


def _start_ns(metadata: Json) -> int:
    """When the request was sent; a request that never left has only the time it was issued."""
    return int(
        metadata.get("request_start_ns")
        or metadata.get("credit_issued_ns")
        or metadata["request_end_ns"]
    )


def _record(row: Json, start_ns: int, zero_ns: int) -> RequestRecord:
    metadata, metrics = row["metadata"], row.get("metrics") or {}
    return RequestRecord(
        request_id=str(metadata.get("x_request_id", "")),
        conversation_id=str(metadata.get("conversation_id", "")),
        turn_index=int(metadata.get("turn_index", 0)),
        agent_depth=int(metadata.get("agent_depth", 0)),
        start_s=(start_ns - zero_ns) / 1e9,
        end_s=(int(metadata["request_end_ns"]) - zero_ns) / 1e9,
        ttft_ms=_number(metrics, "time_to_first_token"),
        itl_ms=_number(metrics, "inter_token_latency"),
        latency_ms=_number(metrics, "request_latency"),
        input_tokens=_count(metrics, "usage_prompt_tokens"),
        output_tokens=_count(metrics, "usage_completion_tokens"),
        cached_tokens=_count(metrics, "usage_prompt_cache_read_tokens"),
        cancelled=bool(metadata.get("was_cancelled")),
        error=_error(row),
    )


def _number(metrics: Json, name: str) -> float | None:
    """A metric's value in AIPerf's own unit, milliseconds for all latencies read here."""
    entry = metrics.get(name)
    return None if entry is None or entry.get("value") is None else float(entry["value"])


def _count(metrics: Json, name: str) -> int | None:
    value = _number(metrics, name)
    return None if value is None else round(value)


def _error(row: Json) -> str | None:
    """One line about a request's failure, None for a request without one."""
    error = row.get("error")
    if error:
        parts = (error.get("code"), error.get("type"), error.get("message"))
        return " ".join(" ".join(str(p) for p in parts if p is not None).split())[:500]
    if row["metadata"].get("context_overflow_skip"):
        return "the client skipped it: the context had overflowed"
    return None
