"""Prometheus metrics: latencies as the API sees them, counters and gauges of the core."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gnomon.engine.runner.messages import EngineStats
from gnomon.engine.scheduler.request import FinishReason

_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600,
)  # fmt: skip


class Metrics:
    """The metrics of one server.

    Attributes:
        content_type: of what :meth:`render` returns.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        disable_created_metrics()  # their creation times tell nobody anything
        self._registry = CollectorRegistry()
        self._stats = _StatsCollector()
        self._registry.register(self._stats)
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "From receiving a request to its first token."
        )
        self.itl = self._histogram(
            "inter_token_latency_seconds", "Between two tokens of a request."
        )
        self.e2e = self._histogram(
            "e2e_request_latency_seconds", "From receiving a request to its last token."
        )
        self.queue = self._histogram(
            "request_queue_time_seconds", "From a request's arrival in the core to its first step."
        )
        self.finished = Counter(
            "gnomon:request_success",
            "Requests that ended, by reason.",
            ["finished_reason"],
            registry=self._registry,
        )
        for reason in FinishReason:
            self.finished.labels(reason.value)
        self._tasks = Gauge(
            "gnomon:api_tasks", "Tasks of the API process's event loop.", registry=self._registry
        )

    def start(self) -> RequestTimer:
        """Begin to time a request."""
        return RequestTimer(self)

    def render(self, stats: EngineStats | None) -> bytes:
        """Everything in Prometheus' text format; the core's part only if it answered.

        Called from the event loop, whose tasks it counts.
        """
        self._stats.stats = stats
        self._tasks.set(len(asyncio.all_tasks()))
        return generate_latest(self._registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"gnomon:{name}", text, buckets=_SECONDS, registry=self._registry)


class RequestTimer:
    """Times one request."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._start = self._last = time.perf_counter()
        self._any = False

    def step(self, tokens: int, queue_s: float | None) -> None:
        """New tokens came; several in one step share its time evenly."""
        if queue_s is not None:
            self._metrics.queue.observe(queue_s)
        if not tokens:
            return
        now = time.perf_counter()
        if not self._any:
            self._metrics.ttft.observe(now - self._start)
            self._any = True
        else:
            for _ in range(tokens):
                self._metrics.itl.observe((now - self._last) / tokens)
        self._last = now

    def finish(self, reason: FinishReason) -> None:
        """The request ended."""
        self._metrics.e2e.observe(time.perf_counter() - self._start)
        self._metrics.finished.labels(reason.value).inc()


class _StatsCollector(Collector):
    """Shows the core's last statistics."""

    def __init__(self) -> None:
        self.stats: EngineStats | None = None

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        stats = self.stats
        if stats is None:
            return
        counters = {
            "prompt_tokens": (stats.prompt_tokens_total, "Prompt tokens taken in."),
            "generation_tokens": (stats.generation_tokens_total, "Tokens generated."),
            "prefix_cache_queries": (stats.prefix_queries_total, "Prompt tokens looked up."),
            "prefix_cache_hits": (stats.prefix_hits_total, "Prompt tokens found in the cache."),
            "preemptions": (stats.preemptions_total, "Requests evicted, to be recomputed."),
            "engine_steps": (stats.steps_total, "Steps of the engine core."),
            "sanitised_values": (
                stats.sanitised_values_total,
                "Non-finite cache inputs replaced by the largest code.",
            ),
            **_host_counters(stats),
        }
        for name, (value, text) in counters.items():
            yield CounterMetricFamily(f"gnomon:{name}", text, value)
        used = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
        gauges = {
            "num_requests_running": (stats.running, "Requests in the running batch."),
            "num_requests_waiting": (stats.waiting, "Requests that wait for their first step."),
            "kv_cache_usage_ratio": (used, "Blocks held by live requests, of all blocks."),
        }
        for name, (gauge, text) in gauges.items():
            yield GaugeMetricFamily(f"gnomon:{name}", text, gauge)
        blocks = GaugeMetricFamily("gnomon:kv_cache_blocks", "Blocks by state.", labels=["state"])
        blocks.add_metric(["used"], stats.blocks_used)
        blocks.add_metric(["cached"], stats.blocks_cached)
        free = stats.blocks_total - stats.blocks_used - stats.blocks_cached
        blocks.add_metric(["free"], free)
        yield blocks
        host = GaugeMetricFamily("gnomon:host_cache_blocks", "Host blocks.", labels=["state"])
        host.add_metric(["used"], stats.host_blocks_used)
        host.add_metric(["free"], stats.host_blocks_total - stats.host_blocks_used)
        yield host


def _host_counters(stats: EngineStats) -> dict[str, tuple[float, str]]:
    """Counters of the host tier; all zero without one."""
    return {
        "host_cache_loaded_tokens": (
            stats.host_loaded_tokens_total,
            "Tokens whose cache came back from host memory.",
        ),
        "host_cache_evictions": (
            stats.host_evictions_total,
            "Blocks that host memory gave up for others.",
        ),
        "host_cache_saved_bytes": (stats.host_saved_bytes_total, "Bytes saved to host memory."),
        "host_cache_loaded_bytes": (
            stats.host_loaded_bytes_total,
            "Bytes loaded from host memory.",
        ),
        "host_cache_save_seconds": (stats.host_save_seconds_total, "Seconds spent saving."),
        "host_cache_load_seconds": (stats.host_load_seconds_total, "Seconds spent loading."),
    }
