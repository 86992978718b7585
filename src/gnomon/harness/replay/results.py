"""What a replay gave: every request accounted for, and the series a report draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gnomon.harness.nouns import Finding


@dataclass(frozen=True)
class RequestRecord:
    """One request of the measured phase, as the client saw it.

    Attributes:
        request_id: the client's own id, sent as ``X-Request-ID``.
        conversation_id: the session or sub-agent it belongs to.
        turn_index: from 0 within the conversation.
        agent_depth: 0 for a root conversation, 1 for its sub-agents.
        start_s: when it was sent, seconds after the first request of the phase.
        end_s: when its last byte or its failure came, same clock.
        ttft_ms: time to the first token of any kind.
        itl_ms: mean time between tokens of this request.
        latency_ms: whole request.
        input_tokens: the server's count of prompt tokens.
        output_tokens: the server's count of answer tokens.
        cached_tokens: prompt tokens the server said came from its prefix cache.
        cancelled: the client gave up on it before its end.
        error: one line (code, type, message), None where it completed.
    """

    request_id: str
    conversation_id: str
    turn_index: int
    agent_depth: int
    start_s: float
    end_s: float
    ttft_ms: float | None = None
    itl_ms: float | None = None
    latency_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cancelled: bool = False
    error: str | None = None

    @property
    def completed(self) -> bool:
        """Whether it ended with an answer."""
        return self.error is None and not self.cancelled


@dataclass(frozen=True)
class ReplayCounts:
    """Requests of the measured phase by what became of them.

    Attributes:
        expected: requests in the trace set.
        recorded: rows the client wrote for the measured phase.
        completed: ended with an answer.
        errored: ended with an error that is not a cancellation.
        cancelled: given up by the client.
        warmup: rows of other phases, left out of everything else.
    """

    expected: int
    recorded: int
    completed: int
    errored: int
    cancelled: int
    warmup: int

    @property
    def missing(self) -> int:
        """Expected requests without a row: never sent, or lost by a client that was stopped."""
        return max(0, self.expected - self.recorded)


@dataclass(frozen=True)
class CacheHits:
    """Prompt tokens found in a prefix cache, of those asked for.

    Attributes:
        hit_tokens: tokens found.
        queried_tokens: tokens looked up.
        source: where the two numbers come from, in words.
    """

    hit_tokens: int
    queried_tokens: int
    source: str

    @property
    def rate(self) -> float | None:
        """Hits over queries, None without queries."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else None


@dataclass(frozen=True)
class TimeSlice:
    """One point of the time series, over ``[start_s, start_s + width)``.

    Attributes:
        start_s: seconds after the first request.
        ttft_ms: mean over requests whose first token came in the slice, None without one.
        itl_ms: mean over requests that ended in the slice, weighted by their gaps; None without.
        output_tokens_per_s: answer tokens of requests, each spread evenly over its decode time.
        completed: requests that ended with an answer in the slice.
        failed: requests that ended without one.
        in_flight: mean number of requests under way.
    """

    start_s: float
    ttft_ms: float | None
    itl_ms: float | None
    output_tokens_per_s: float
    completed: int
    failed: int
    in_flight: float


@dataclass(frozen=True)
class ReplayResult:
    """A finished, failed or stopped replay; whatever it is, every request is counted.

    Attributes:
        argv: the client's command line.
        env: variables set for it beyond the inherited ones, secrets masked.
        exit_code: the client's, None if it had to be killed.
        was_cancelled: stopped by the caller, by the deadline, or by the client itself.
        reason: why it did not run to its end, None if it did.
        wall_s: of the client's process, its start-up included.
        duration_s: first request sent to last request ended.
        records: the measured phase in the order sent.
        counts: what became of the requests.
        slices: the time series.
        slice_s: width of a slice.
        client_cache: cached tokens from the usage of every completed request.
        server_cache: difference of the server's counters over the replay, None if not exported.
        findings: consistency checks between records, aggregate and traces.
        versions: of the client and its lock file.
        artifacts: raw files, relative to the replay's folder.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    exit_code: int | None
    was_cancelled: bool
    reason: str | None
    wall_s: float
    duration_s: float
    records: tuple[RequestRecord, ...]
    counts: ReplayCounts
    slices: tuple[TimeSlice, ...]
    slice_s: float
    client_cache: CacheHits | None
    server_cache: CacheHits | None
    findings: tuple[Finding, ...]
    versions: Mapping[str, str]
    artifacts: tuple[Path, ...] = ()

    @property
    def ok(self) -> bool:
        """Every expected request completed and every consistency check held."""
        return (
            self.reason is None
            and self.counts.completed == self.counts.expected
            and all(finding.passed for finding in self.findings)
        )

    @property
    def ttft_ms(self) -> tuple[float, ...]:
        """Time to first token of every completed request that has one."""
        return tuple(r.ttft_ms for r in self.records if r.completed and r.ttft_ms is not None)

    @property
    def itl_ms(self) -> tuple[float, ...]:
        """Mean inter-token latency of every completed request that has one."""
        return tuple(r.itl_ms for r in self.records if r.completed and r.itl_ms is not None)

    @property
    def latency_ms(self) -> tuple[float, ...]:
        """Whole latency of every completed request that has one."""
        return tuple(r.latency_ms for r in self.records if r.completed and r.latency_ms is not None)

    @property
    def output_tokens_per_s(self) -> float | None:
        """Answer tokens of completed requests over `duration_s`."""
        tokens = sum(r.output_tokens or 0 for r in self.records if r.completed)
        return tokens / self.duration_s if self.duration_s > 0 else None
