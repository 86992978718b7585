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


class Tail(StrEnum):
    """How a percentile of a metric is taken, which decides whose experience it tells."""

    NONE = "a single value"
    DIRECT = "the percentile of the values; a high one is the slow tail"
    INVERTED = "1 / the percentile of the latency; a high one is still the slow tail"


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
        tail: how its percentiles are taken. The 90th percentile of a rate would be the fast users'.
    """

    id: str
    title: str
    formula: str
    unit: str
    direction: Direction
    population: str
    tail: Tail = Tail.NONE


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
            Tail.DIRECT,
        ),
        Metric(
            "itl_ms",
            "Inter-token latency",
            "(request latency - TTFT) / (output tokens - 1), per request",
            "ms",
            Direction.LOWER,
            f"{_SERVED} and produced at least two tokens",
            Tail.DIRECT,
        ),
        Metric(
            "request_latency_ms",
            "Request latency",
            "last token received - request sent",
            "ms",
            Direction.LOWER,
            _SERVED,
            Tail.DIRECT,
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
            "interactivity",
            "Interactivity",
            "1 / percentile of the inter-token latency",
            "tokens/s/user",
            Direction.HIGHER,
            f"{_SERVED} and produced at least two tokens",
            Tail.INVERTED,
        ),
        Metric(
            "normalised_interactivity",
            "End-to-end normalised interactivity",
            "1 / percentile of (request latency / output tokens)",
            "tokens/s/user",
            Direction.HIGHER,
            f"{_SERVED} and produced at least one token",
            Tail.INVERTED,
        ),
        Metric(
            "window_output_tokens_per_s",
            "Output throughput in the window",
            "output tokens that fall into the window, each answer spread evenly from its first "
            "token to its end / length of the window, drain left out",
            "tokens/s",
            Direction.HIGHER,
            _SERVED,
        ),
        Metric(
            "window_input_tokens_per_s",
            "Input throughput in the window",
            "input tokens of requests whose first token falls into the window / its length",
            "tokens/s",
            Direction.HIGHER,
            _SERVED,
        ),
        Metric(
            "output_tokens_per_s_per_gpu",
            "Output throughput per GPU",
            "output throughput / accelerators of the whole deployment, prefill workers included",
            "tokens/s/GPU",
            Direction.HIGHER,
            _SERVED,
        ),
        Metric(
            "total_tokens_per_s_per_gpu",
            "Total throughput per GPU",
            "(sum of input and output tokens, cached ones included) / window / accelerators; "
            "nearly all of it is prompt tokens found in the cache",
            "tokens/s/GPU",
            Direction.HIGHER,
            _SERVED,
        ),
        Metric(
            "goodput_requests_per_s",
            "Goodput",
            "requests that completed within every limit / (last request end - first request start)",
            "requests/s",
            Direction.HIGHER,
            "requests of the profiling phase; a failed one meets no limit",
        ),
        Metric(
            "goodput_share",
            "Share of good requests",
            "requests that completed within every limit / requests",
            "fraction",
            Direction.HIGHER,
            "requests of the profiling phase; a failed one meets no limit",
        ),
        Metric(
            "acceptance_length",
            "Realised acceptance length",
            "1 + accepted draft tokens / verifications, from the engine's counters over the window",
            "tokens",
            Direction.NEUTRAL,
            "verifications of the window",
        ),
        Metric(
            "prompt_cached_share",
            "Prompt tokens from the device's cache",
            "prompt tokens found on the device / prompt tokens of all sources",
            "fraction",
            Direction.HIGHER,
            "prompt tokens of the window, from the engine's counters",
        ),
        Metric(
            "prompt_restored_share",
            "Prompt tokens from the second tier",
            "prompt tokens restored from host memory or another worker / those of all sources",
            "fraction",
            Direction.NEUTRAL,
            "prompt tokens of the window, from the engine's counters",
        ),
        Metric(
            "prompt_reused_share",
            "Prompt tokens not computed",
            "(found on the device + restored) / prompt tokens of all sources",
            "fraction",
            Direction.HIGHER,
            "prompt tokens of the window, from the engine's counters",
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
