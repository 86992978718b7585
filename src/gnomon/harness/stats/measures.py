"""How each metric of a replay is computed from its requests; the registry says it in words.

Percentiles are linear between observations. A rate per user is 1 over a percentile of the latency,
never a percentile of the rates: the 90th percentile of rates is what the fastest tenth saw
(a public comparison was optimistic by a factor of 16 that way).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gnomon.harness.replay.results import RequestRecord
from gnomon.harness.stats.percentiles import interpolate

QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)
"""Percentiles that are reported, where the sample can hold them."""

_MS = 1000.0


def session_tree(record: RequestRecord) -> str:
    """The root conversation of a request: a sub-agent's id continues its root's after ``::``."""
    return record.conversation_id.split("::", 1)[0]


def latency_per_token(record: RequestRecord) -> float | None:
    """Seconds of a whole request for each of its output tokens; None without latency or tokens."""
    if record.latency_ms is None or record.latency_ms <= 0 or not record.output_tokens:
        return None
    return record.latency_ms / _MS / record.output_tokens


def rate_at(latencies_s: Sequence[float], quantile: float) -> float:
    """Tokens a second that a user at this percentile of latency sees: 1 / percentile.

    Args:
        latencies_s: seconds a token, any order, at least one, all above 0.
        quantile: of the latency; 0.9 is the slow tail.

    Raises:
        ValueError: there is no latency, or one is not above 0.
    """
    if not latencies_s or min(latencies_s) <= 0:
        raise ValueError("a rate needs at least one latency, and all of them above 0")
    return 1.0 / interpolate(sorted(latencies_s), quantile)


@dataclass(frozen=True)
class Window:
    """The time that is measured, in seconds after the first request.

    Attributes:
        start_s: when load is steady.
        end_s: when nothing new is sent; what still runs then drains.
    """

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """How long it is."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Throughput:
    """Tokens a second.

    Attributes:
        input: prompt tokens, cached ones included.
        output: answer tokens.
        seconds: what they were divided by.
    """

    input: float
    output: float
    seconds: float

    @property
    def total(self) -> float:
        """Both; nearly all of it is cached prompt tokens under agentic load."""
        return self.input + self.output

    def per_gpu(self, gpus: int) -> Throughput:
        """Of one accelerator.

        Args:
            gpus: of the whole deployment, prefill workers included.

        Raises:
            ValueError: fewer than 1.
        """
        if gpus < 1:
            raise ValueError(f"a deployment has at least 1 accelerator, not {gpus}")
        return Throughput(self.input / gpus, self.output / gpus, self.seconds)


def drained_throughput(records: Sequence[RequestRecord]) -> Throughput | None:
    """Over first request start to last request end, drain included; None without a request.

    One long straggler lengthens the time and lowers it: see `clipped_throughput`.

    Args:
        records: completed ones with token counts.
    """
    served = _counted(records)
    if not served:
        return None
    seconds = max(r.end_s for r in served) - min(r.start_s for r in served)
    if seconds <= 0:
        return None
    tokens_in = sum(r.input_tokens or 0 for r in served)
    tokens_out = sum(r.output_tokens or 0 for r in served)
    return Throughput(tokens_in / seconds, tokens_out / seconds, seconds)


def clipped_throughput(records: Sequence[RequestRecord], window: Window) -> Throughput | None:
    """Tokens that fall into the window, over its length; None for an empty window.

    An answer is spread evenly from its first token to its end; a prompt counts when its first token
    comes.

    Args:
        records: completed ones with token counts and time to first token.
        window: the measured time.
    """
    if window.length_s <= 0:
        return None
    tokens_in, tokens_out = 0.0, 0.0
    for record in _counted(records):
        first_s = record.start_s + (record.ttft_ms or 0.0) / _MS
        if window.start_s <= first_s < window.end_s:
            tokens_in += record.input_tokens or 0
        tokens_out += (record.output_tokens or 0) * _share(first_s, record.end_s, window)
    return Throughput(tokens_in / window.length_s, tokens_out / window.length_s, window.length_s)


def _share(begin_s: float, end_s: float, window: Window) -> float:
    """Part of a span that lies in the window; a point lies in it or not."""
    if end_s <= begin_s:
        return float(window.start_s <= begin_s < window.end_s)
    inside = min(end_s, window.end_s) - max(begin_s, window.start_s)
    return max(0.0, inside) / (end_s - begin_s)


def _counted(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    return [
        r
        for r in records
        if r.completed and r.input_tokens is not None and r.output_tokens is not None
    ]


@dataclass(frozen=True)
class Limits:
    """What a good request keeps to; None does not count.

    Attributes:
        ttft_ms: time to first token, at most.
        itl_ms: mean time between tokens, at most.
        latency_ms: whole request, at most.
    """

    ttft_ms: float | None = None
    itl_ms: float | None = None
    latency_ms: float | None = None

    def met_by(self, record: RequestRecord) -> bool:
        """Whether a request completed within every limit; what was not measured meets none.

        An answer of one token has no time between tokens and keeps to that limit.
        """
        if not record.completed:
            return False
        if self.itl_ms is not None and not (
            (record.output_tokens == 1 and record.itl_ms is None)
            or (record.itl_ms is not None and record.itl_ms <= self.itl_ms)
        ):
            return False
        pairs = ((record.ttft_ms, self.ttft_ms), (record.latency_ms, self.latency_ms))
        return all(
            limit is None or (value is not None and value <= limit) for value, limit in pairs
        )


@dataclass(frozen=True)
class Goodput:
    """Good requests, of all.

    Attributes:
        good: completed within every limit.
        requests: all of them, failed and cancelled ones too.
        seconds: first request start to last request end, failed ones included.
    """

    good: int
    requests: int
    seconds: float

    @property
    def share(self) -> float:
        """Good requests of all requests."""
        return self.good / self.requests

    @property
    def per_s(self) -> float:
        """Good requests a second."""
        return self.good / self.seconds


def goodput(records: Sequence[RequestRecord], limits: Limits) -> Goodput | None:
    """Good requests over everything that was asked; None if nothing was.

    Failed requests stay in both denominators: leaving them out would raise the number by what went
    wrong.

    Args:
        records: of the measured phase, whatever became of them.
        limits: of a good request.
    """
    if not records:
        return None
    seconds = max(r.end_s for r in records) - min(r.start_s for r in records)
    if seconds <= 0:
        return None
    return Goodput(sum(limits.met_by(r) for r in records), len(records), seconds)


@dataclass(frozen=True)
class PromptSources:
    """Where prompt tokens came from, from an engine's counters over the window.

    Attributes:
        cached: found on the device.
        restored: brought back from host memory or another worker.
        computed: neither.
    """

    cached: float
    restored: float
    computed: float

    @classmethod
    def of(cls, counters: Mapping[str, float]) -> PromptSources | None:
        """From differences of the catalogue's counters; None where one is missing or all are 0.

        The three are disjoint and are read from three series: the second tier is not the device's
        cache under another name.

        Args:
            counters: by `EngineMetric.id`.
        """
        names = ("prompt_tokens_cached", "prompt_tokens_restored", "prompt_tokens_computed")
        if any(name not in counters for name in names):
            return None
        sources = cls(*(counters[name] for name in names))
        return sources if sources.total > 0 else None

    @property
    def total(self) -> float:
        """Prompt tokens of all sources."""
        return self.cached + self.restored + self.computed

    @property
    def shares(self) -> dict[str, float]:
        """By metric id of the registry."""
        return {
            "prompt_cached_share": self.cached / self.total,
            "prompt_restored_share": self.restored / self.total,
            "prompt_reused_share": (self.cached + self.restored) / self.total,
        }


def one_value(replicas: Sequence[float], per: str) -> float | None:
    """One number from an engine's replicas, by what they are replicas of.

    Args:
        replicas: the same series of every rank or engine.
        per: `EngineMetric.per`: parts of ``engine`` are summed; every ``copy`` must say the same;
            a ``server`` has one.

    Returns:
        The number, or None where copies disagree, a server has several, or there is none.
    """
    if not replicas:
        return None
    if per == "engine":
        return sum(replicas)
    return replicas[0] if len(set(replicas)) == 1 else None
