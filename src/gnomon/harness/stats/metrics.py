"""The metric registry: what each published number means, once.

The report and the verdicts print these entries; nothing downstream recomputes or renames them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Direction(StrEnum):
    """Which way is better."""

    LOWER = "lower is better"
    HIGHER = "higher is better"
    NEUTRAL = "neither is better"


@dataclass(frozen=True)
class Metric:
    """The definition of a number.

    Attributes:
        id: stable identifier.
        title: as printed.
        formula: how it is computed, from which fields.
        unit: of the value.
        direction: which way is better.
        population: which records count.
    """

    id: str
    title: str
    formula: str
    unit: str
    direction: Direction
    population: str


_SERVED = "requests of the profiling phase that ended without an error"

METRICS: dict[str, Metric] = {
    metric.id: metric
    for metric in (
        Metric(
            "ttft_ms",
            "Time to first token",
            "first token received - request sent; a reasoning token counts as a token",
            "ms",
            Direction.LOWER,
            _SERVED,
        ),
        Metric(
            "itl_ms",
            "Inter-token latency",
            "(request latency - TTFT) / (output tokens - 1), per request",
            "ms",
            Direction.LOWER,
            f"{_SERVED} and produced at least two tokens",
        ),
        Metric(
            "request_latency_ms",
            "Request latency",
            "last token received - request sent",
            "ms",
            Direction.LOWER,
            _SERVED,
        ),
        Metric(
            "output_tokens_per_s",
            "Output throughput",
            "sum of output tokens / (last request end - first request start), drain included",
            "tokens/s",
            Direction.HIGHER,
            _SERVED,
        ),
        Metric(
            "input_tokens_per_s",
            "Input throughput",
            "sum of input tokens, cached ones included / (last request end - first request start)",
            "tokens/s",
            Direction.HIGHER,
            _SERVED,
        ),
        Metric(
            "requests_per_s",
            "Request throughput",
            "requests / (last request end - first request start), drain included",
            "requests/s",
            Direction.HIGHER,
            _SERVED,
        ),
        Metric(
            "cache_hit_rate",
            "Prompt tokens served from the prefix cache",
            "sum of usage.prompt_tokens_details.cached_tokens / sum of usage.prompt_tokens",
            "fraction",
            Direction.HIGHER,
            f"{_SERVED} and whose usage says how many prompt tokens were cached",
        ),
        Metric(
            "error_rate",
            "Request error rate",
            "requests that ended in an error / requests",
            "fraction",
            Direction.LOWER,
            "requests of the profiling phase",
        ),
        Metric(
            "accuracy",
            "Accuracy",
            "cases passed / cases in the suite's manifest; a case without an answer is not passed",
            "fraction",
            Direction.HIGHER,
            "every case of the manifest",
        ),
    )
}


def metric_of(figure_metric: str) -> Metric:
    """Registry entry of a figure's metric id, with or without a statistic (``ttft_ms.p50``).

    Raises:
        KeyError: no such metric is registered.
    """
    return METRICS[figure_metric.split(".", 1)[0]]
