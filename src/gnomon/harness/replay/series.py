"""The time series of a replay, computed from its records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gnomon.harness.replay.results import RequestRecord, TimeSlice


def time_slices(records: Sequence[RequestRecord], width_s: float) -> tuple[TimeSlice, ...]:
    """Slices from the first request's start to the last one's end, without gaps.

    Every completed request's tokens land in the slices exactly once, so the sum over slices of
    rate times width is the number of answer tokens.
    """
    if not records:
        return ()
    end = max(record.end_s for record in records)
    number = max(1, math.ceil(end / width_s))
    return tuple(_slice(records, i * width_s, width_s, i == number - 1) for i in range(number))


def _slice(records: Sequence[RequestRecord], start: float, width: float, last: bool) -> TimeSlice:
    end = start + width

    def within(moment: float) -> bool:
        return start <= moment < end or (last and moment == end)

    ended = [r for r in records if within(r.end_s)]
    ttft = [
        r.ttft_ms for r in records if r.completed and r.ttft_ms is not None and within(_first(r))
    ]
    gaps = [
        (r.itl_ms, max((r.output_tokens or 2) - 1, 1))
        for r in ended
        if r.completed and r.itl_ms is not None
    ]
    weight = sum(n for _, n in gaps)
    busy = sum(_overlap(r.start_s, r.end_s, start, end) for r in records)
    return TimeSlice(
        start_s=start,
        ttft_ms=sum(ttft) / len(ttft) if ttft else None,
        itl_ms=sum(itl * n for itl, n in gaps) / weight if weight else None,
        output_tokens_per_s=sum(_tokens(r, start, end, last) for r in records) / width,
        completed=sum(r.completed for r in ended),
        failed=sum(not r.completed for r in ended),
        in_flight=busy / width,
    )


def _first(record: RequestRecord) -> float:
    """When the first token came, on the records' clock."""
    return min(record.start_s + (record.ttft_ms or 0.0) / 1e3, record.end_s)


def _overlap(start: float, end: float, left: float, right: float) -> float:
    return max(0.0, min(end, right) - max(start, left))


def _tokens(record: RequestRecord, left: float, right: float, last: bool) -> float:
    """Answer tokens of a request that fall into ``[left, right)``."""
    if not record.completed or not record.output_tokens:
        return 0.0
    first = _first(record)
    decode = record.end_s - first
    if decode <= 0:  # all at once: they belong to the slice of that moment
        inside = left <= record.end_s < right or (last and record.end_s == right)
        return float(record.output_tokens) if inside else 0.0
    return record.output_tokens * _overlap(first, record.end_s, left, right) / decode
