"""What a replay looked like over time: one drawing a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnomon.harness.replay.results import ReplayResult
from gnomon.harness.report import charts
from gnomon.harness.report.charts import Level, Points, Steps, time_chart
from gnomon.harness.stats.measures import session_tree


@dataclass(frozen=True)
class Chart:
    """A drawing with what it is about.

    Attributes:
        title: of the drawing.
        svg: inline.
        n: observations in it.
        note: what a dot or a step is.
        keys: legend: colour variable and words.
    """

    title: str
    svg: str
    n: int
    note: str
    keys: tuple[tuple[str, str], ...] = ()


def replay_charts(replay: ReplayResult) -> tuple[Chart, ...]:
    """TTFT, ITL, throughput, requests in flight and cache hits over time."""
    served = [record for record in replay.records if record.completed]
    until = replay.duration_s
    roots = [record for record in served if record.agent_depth == 0]
    agents = [record for record in served if record.agent_depth > 0]
    both = (("--series-1", "root conversations"), ("--series-2", "sub-agents"))
    drawings: list[Chart] = []
    groups = ((roots, charts.FIRST, "o"), (agents, charts.SECOND, "D"))

    ttft = [
        Points(
            [r.start_s + r.ttft_ms / 1e3 for r in group if r.ttft_ms is not None],
            [r.ttft_ms for r in group if r.ttft_ms is not None],
            colour,
            marker,
        )
        for group, colour, marker in groups
    ]
    drawings.append(_points_chart("ttft", "Time to first token", ttft, "ms", until, both))
    itl = [
        Points(
            [r.end_s for r in group if r.itl_ms is not None],
            [r.itl_ms for r in group if r.itl_ms is not None],
            colour,
            marker,
        )
        for group, colour, marker in groups
    ]
    drawings.append(_points_chart("itl", "Inter-token latency", itl, "ms", until, both))
    starts = [piece.start_s for piece in replay.slices]
    throughput = Steps(
        starts, replay.slice_s, [s.output_tokens_per_s for s in replay.slices], charts.FIRST
    )
    drawings.append(
        Chart(
            "Output throughput",
            time_chart(
                "throughput",
                [throughput],
                "tokens/s",
                label="Output throughput over time",
                until_s=until,
            ),
            len(served),
            f"each step is {replay.slice_s:g} s; a request's tokens are spread over its decoding",
        )
    )
    flight = Steps(starts, replay.slice_s, [s.in_flight for s in replay.slices], charts.THIRD)
    drawings.append(
        Chart(
            "Requests in flight",
            time_chart(
                "flight", [flight], "requests", label="Requests in flight over time", until_s=until
            ),
            len(replay.records),
            f"mean over each {replay.slice_s:g} s",
        )
    )
    cache = _cache_chart(replay, groups, both)
    return (*drawings, cache) if cache is not None else tuple(drawings)


def _points_chart(
    name: str,
    title: str,
    series: Sequence[Points],
    unit: str,
    until: float,
    keys: tuple[tuple[str, str], ...],
) -> Chart:
    svg = time_chart(name, series, unit, label=f"{title} over time", until_s=until)
    n = sum(len(points.y) for points in series)
    return Chart(title, svg, n, "each dot is one request", keys)


def _cache_chart(
    replay: ReplayResult, groups: Sequence[tuple[Any, str, str]], keys: tuple[tuple[str, str], ...]
) -> Chart | None:
    series: list[Points | Level] = []
    n = 0
    for group, colour, marker in groups:
        usable = [r for r in group if r.cached_tokens is not None and r.input_tokens]
        n += len(usable)
        shares = [100.0 * r.cached_tokens / r.input_tokens for r in usable]
        series.append(Points([r.start_s for r in usable], shares, colour, marker))
    cache = replay.client_cache
    if not n or cache is None or cache.rate is None:
        return None
    series.insert(0, Level(100.0 * cache.rate, charts.THIRD))
    svg = time_chart(
        "cache",
        series,
        "% of prompt",
        label="Prefix cache hits",
        until_s=replay.duration_s,
        top=105,
    )
    note = "each dot is one request's prompt; the dashed line is the share over all prompt tokens"
    trees = len({session_tree(record) for record in replay.records})
    return Chart("Prompt tokens from the prefix cache", svg, n, f"{note}; {trees} sessions", keys)
