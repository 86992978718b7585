"""Figures of a replay: values of registered metrics with unit, n, scope and uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gnomon.harness.evidence.verdicts import Figure, Scope
from gnomon.harness.replay.results import ReplayResult, RequestRecord
from gnomon.harness.stats.intervals import MIN_CLUSTERS, cluster_bootstrap
from gnomon.harness.stats.measures import QUANTILES, latency_per_token, rate_at, session_tree
from gnomon.harness.stats.metrics import METRICS, Tail, metric_of
from gnomon.harness.stats.percentiles import interpolate, percentile, smallest_n

ONE_WINDOW = "one window: a rate over the whole replay has no repeats to vary"


@dataclass(frozen=True)
class Withheld:
    """A figure that is not given, and why."""

    metric: str
    reason: str

    @property
    def title(self) -> str:
        """The metric's title with its statistic: ``Time to first token p99``."""
        return " ".join([metric_of(self.metric).title, *self.metric.split(".")[1:]])


@dataclass(frozen=True)
class FigureSet:
    """The figures of a replay and those that its data cannot support."""

    latency: tuple[Figure, ...]
    rates: tuple[Figure, ...]
    withheld: tuple[Withheld, ...]


def replay_figures(replay: ReplayResult, scope: Scope) -> FigureSet:
    """Every figure the records support.

    Args:
        replay: its records are the measured phase.
        scope: of the run.
    """
    served = [record for record in replay.records if record.completed]
    latency: list[Figure] = []
    withheld: list[Withheld] = []
    fields: dict[str, Callable[[RequestRecord], float | None]] = {
        "ttft_ms": lambda record: record.ttft_ms,
        "itl_ms": lambda record: record.itl_ms,
        "request_latency_ms": lambda record: record.latency_ms,
        "interactivity": lambda record: record.itl_ms and record.itl_ms / 1000,
        "normalised_interactivity": latency_per_token,
    }
    for metric, read in fields.items():
        pairs = [(read(record), session_tree(record)) for record in served]
        inverted = METRICS[metric].tail is Tail.INVERTED
        kept = [pair for pair in pairs if pair[0] is not None and (pair[0] > 0 or not inverted)]
        values = [value for value, _ in kept if value is not None]
        trees = [tree for _, tree in kept]
        for quantile in QUANTILES:
            made = _percentile_figure(metric, values, trees, quantile, scope)
            if isinstance(made, Figure):
                latency.append(made)
            else:
                withheld.append(made)
    rates = _rates(replay, served, scope, withheld)
    return FigureSet(tuple(latency), tuple(rates), tuple(withheld))


def _percentile_figure(
    metric: str,
    values: Sequence[float],
    trees: Sequence[str],
    quantile: float,
    scope: Scope,
) -> Figure | Withheld:
    name = f"{metric}.p{quantile * 100:g}"
    value = percentile(values, quantile)
    if value is None:
        return Withheld(
            name,
            f"n = {len(values)}, at least {smallest_n(quantile)} requests are needed for it to be "
            "more than the extreme",
        )
    inverted = METRICS[metric].tail is Tail.INVERTED
    statistic = partial(_rate_of if inverted else _quantile_of, quantile)
    interval = cluster_bootstrap(values, trees, statistic)
    return Figure(
        metric=name,
        value=rate_at(values, quantile) if inverted else value,
        unit=METRICS[metric].unit,
        n=len(values),
        scope=scope,
        interval=interval,
        no_interval_because=(
            "" if interval else f"{len(set(trees))} session trees, {MIN_CLUSTERS} are needed"
        ),
    )


def _quantile_of(quantile: float, ordered: Sequence[float]) -> float:
    return interpolate(ordered, quantile)


def _rate_of(quantile: float, ordered: Sequence[float]) -> float:
    return rate_at(ordered, quantile)


def _rates(
    replay: ReplayResult,
    served: Sequence[RequestRecord],
    scope: Scope,
    withheld: list[Withheld],
) -> list[Figure]:
    figures: list[Figure] = []
    outputs = [r.output_tokens for r in served if r.output_tokens is not None]
    inputs = [r.input_tokens for r in served if r.input_tokens is not None]
    window = replay.duration_s
    totals: dict[str, tuple[float, int]] = {
        "output_tokens_per_s": (sum(outputs), len(outputs)),
        "input_tokens_per_s": (sum(inputs), len(inputs)),
        "requests_per_s": (len(served), len(served)),
    }
    for metric, (total, n) in totals.items():
        if window <= 0 or n < 1:
            withheld.append(Withheld(metric, "no completed request to count"))
            continue
        if n < len(served):
            withheld.append(
                Withheld(metric, f"{len(served) - n} of {len(served)} requests have no token count")
            )
            continue
        figures.append(_rate(metric, total / window, n, scope, ONE_WINDOW))
    cache = replay.client_cache
    if cache is not None and cache.rate is not None:
        n = sum(record.cached_tokens is not None for record in served)
        if n:
            because = "tokens of one session are not independent draws"
            figures.append(_rate("cache_hit_rate", cache.rate, n, scope, because))
    else:
        withheld.append(Withheld("cache_hit_rate", "the server reports no cached tokens"))
    counts = replay.counts
    if counts.recorded:
        failed = counts.recorded - counts.completed
        because = "requests of one session are not independent draws"
        figures.append(
            _rate("error_rate", failed / counts.recorded, counts.recorded, scope, because)
        )
    return figures


def _rate(metric: str, value: float, n: int, scope: Scope, because: str) -> Figure:
    return Figure(
        metric=metric,
        value=value,
        unit=METRICS[metric].unit,
        n=n,
        scope=scope,
        no_interval_because=because,
    )
