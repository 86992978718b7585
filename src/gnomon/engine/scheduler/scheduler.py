"""What runs in the next step: decode rows and prefill chunks under one token budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from gnomon.engine.cache.manager import BlockManager
from gnomon.engine.errors import AdmissionError
from gnomon.engine.scheduler.request import FinishReason, Request, RequestState


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of one scheduler.

    Attributes:
        max_num_seqs: most requests that hold blocks at a time.
        max_num_batched_tokens: token budget of a step; at least ``max_num_seqs``, so that every
            running request advances in every step.
        max_model_len: most tokens of a request, prompt and output together.
        eos_token_ids: ids that end a request unless it ignores them.
        max_waiting: requests that may queue behind the running ones.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    eos_token_ids: frozenset[int] = frozenset()
    max_waiting: int = 4096

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"a budget of {self.max_num_batched_tokens} tokens a step cannot advance "
                f"{self.max_num_seqs} requests"
            )


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of one request in one step.

    Attributes:
        request: the request; read, never changed, until the step is committed.
        start: first position computed.
        stop: position behind the last.
        samples: whether the logits of the last position choose a new token.
    """

    request: Request
    start: int
    stop: int
    samples: bool


@dataclass(frozen=True)
class Step:
    """One forward: chunks of distinct requests, decode rows first.

    Attributes:
        chunks: at most one a request; empty if there is nothing to do.
        preempted: ids of requests that lost their blocks while this step was made.
    """

    chunks: tuple[Chunk, ...]
    preempted: tuple[str, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Token rows of the step."""
        return sum(chunk.stop - chunk.start for chunk in self.chunks)


@dataclass(frozen=True)
class Progress:
    """A token a request gained by a step, and why it ended if it did."""

    request: Request
    token_id: int
    finish_reason: FinishReason | None


@dataclass
class SchedulerCounters:
    """Totals since start."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


class Scheduler:
    """First come, first served, with decode rows before everything else.

    Running requests are in order of arrival, and every running request arrived before every
    waiting one: admission never overtakes, and preemption takes the latest. Hence the earliest
    request always advances, and every admitted request finishes.
    """

    def __init__(self, config: SchedulerConfig, blocks: BlockManager) -> None:
        self.config = config
        self.blocks = blocks
        self.counters = SchedulerCounters()
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self._live: dict[str, Request] = {}
        self._arrivals = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._live)

    def add(self, request: Request) -> None:
        """Queue a request and number its arrival.

        Raises:
            AdmissionError: the request can never run; the message names the numbers.
        """
        self._admit(request)
        request.arrival = self._arrivals
        self._arrivals += 1
        self._live[request.id] = request
        self.waiting.append(request)

    def abort(self, request_id: str) -> bool:
        """End a request now and free its blocks; False if no such request is live."""
        request = self._live.get(request_id)
        if request is None:
            return False
        self._finish(request, FinishReason.ABORT)
        return True

    def schedule(self) -> Step:
        """Choose the next step and give its requests the blocks they write to."""
        chunks: dict[str, Chunk] = {}
        preempted: list[str] = []
        # A stable sort: decode rows first, and by arrival among themselves and among prefills.
        for request in sorted(self.running, key=lambda r: r.num_tokens - r.num_computed > 1):
            if request.state is not RequestState.RUNNING:
                continue  # preempted by an earlier one of this loop
            count = min(request.num_tokens - request.num_computed, self._left(chunks))
            if count and self._grow(request, request.num_computed + count, chunks, preempted):
                chunks[request.id] = self._chunk(request, count)
        if not preempted:  # what was just evicted would come straight back
            self._admit_waiting(chunks)
        return Step(tuple(chunks.values()), tuple(preempted))

    def commit(self, step: Step, sampled: Mapping[str, int]) -> tuple[Progress, ...]:
        """Record that a step has run; publish full blocks and finish requests that end.

        Args:
            step: what :meth:`schedule` returned last.
            sampled: request id to token, for every chunk that samples. Requests aborted since the
                step was scheduled are skipped.
        """
        progress = []
        for chunk in step.chunks:
            request = chunk.request
            if request.state is not RequestState.RUNNING:
                continue
            request.num_computed = chunk.stop
            self.blocks.publish(request.table, request.tokens, request.num_computed)
            if not chunk.samples:
                continue
            token = sampled[request.id]
            request.output_ids.append(token)
            self.counters.generation_tokens += 1
            reason = self._reason_to_stop(request, token)
            if reason is not None:
                self._finish(request, reason)
            progress.append(Progress(request, token, reason))
        return tuple(progress)

    def _left(self, chunks: Mapping[str, Chunk]) -> int:
        used = sum(chunk.stop - chunk.start for chunk in chunks.values())
        return self.config.max_num_batched_tokens - used

    @staticmethod
    def _chunk(request: Request, count: int) -> Chunk:
        stop = request.num_computed + count
        return Chunk(request, request.num_computed, stop, samples=stop == request.num_tokens)

    def _grow(
        self, request: Request, num_tokens: int, chunks: dict[str, Chunk], preempted: list[str]
    ) -> bool:
        """Give a running request blocks, taking them from the latest; False if it was itself."""
        while not self.blocks.extend(request.table, num_tokens):
            victim = self.running[-1]
            chunks.pop(victim.id, None)
            self._preempt(victim)
            preempted.append(victim.id)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.blocks.release(request.table)
        request.num_computed = 0
        request.preemptions += 1
        request.state = RequestState.WAITING
        self.waiting.appendleft(request)  # it arrived before all that wait
        self.counters.preemptions += 1

    def _admit_waiting(self, chunks: dict[str, Chunk]) -> None:
        """Start waiting requests in order, up to the first that does not fit."""
        while self.waiting and len(self.running) < self.config.max_num_seqs:
            budget = self._left(chunks)
            if budget < 1:
                return
            request = self.waiting[0]
            entries = self.blocks.match(request.tokens, request.num_tokens - 1)
            if not self.blocks.fits(entries, request.num_tokens, self._promised()):
                return
            self.waiting.popleft()
            self.blocks.adopt(request.table, entries)
            request.num_computed = len(entries) * self.blocks.block_size
            if not request.preemptions:
                self._count_first_admission(request)
            request.state = RequestState.RUNNING
            self.running.append(request)
            count = min(request.num_tokens - request.num_computed, budget)
            if not self.blocks.extend(request.table, request.num_computed + count):
                raise AssertionError(f"request {request.id} was admitted without room")
            chunks[request.id] = self._chunk(request, count)

    def _promised(self) -> int:
        """Blocks running requests still need for the tokens they have (prefills under way)."""
        return sum(
            self.blocks.blocks_for(r.num_tokens) - len(r.table.block_ids) for r in self.running
        )

    def _count_first_admission(self, request: Request) -> None:
        request.num_cached = request.num_computed
        self.counters.prompt_tokens += len(request.prompt_ids)
        if self.blocks.enable_prefix_caching:
            self.counters.prefix_queries += len(request.prompt_ids)
            self.counters.prefix_hits += request.num_cached

    def _reason_to_stop(self, request: Request, token: int) -> FinishReason | None:
        sampling = request.sampling
        if token in sampling.stop_token_ids:
            return FinishReason.STOP
        if token in self.config.eos_token_ids and not sampling.ignore_eos:
            return FinishReason.STOP
        if len(request.output_ids) >= sampling.max_tokens:
            return FinishReason.LENGTH
        return None

    def _finish(self, request: Request, reason: FinishReason) -> None:
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
            self.blocks.release(request.table)
        else:
            self.waiting.remove(request)
        request.state = RequestState.FINISHED
        request.finish_reason = reason
        del self._live[request.id]

    def _admit(self, request: Request) -> None:
        """Refuse what can never run, whatever else is going on."""
        prompt, output = len(request.prompt_ids), request.sampling.max_tokens
        if request.id in self._live:
            raise AdmissionError(f"a request with the id {request.id!r} is already running")
        if prompt < 1:
            raise AdmissionError("the prompt is empty; it needs at least one token")
        if output < 1:
            raise AdmissionError(f"max_tokens is {output}; it must be at least 1")
        if prompt + output > self.config.max_model_len:
            raise AdmissionError(
                f"this model's maximum context length is {self.config.max_model_len} tokens, but "
                f"the request needs {prompt + output}: {prompt} in the prompt and {output} for "
                "the output (max_tokens); shorten the prompt or lower max_tokens"
            )
        needed = self.blocks.blocks_for(prompt + output - 1)  # the last token is never written
        if needed > self.blocks.pool.num_blocks:
            raise AdmissionError(
                f"the request needs {needed} cache blocks of {self.blocks.block_size} tokens for "
                f"{prompt} prompt and {output} output tokens, but the engine has "
                f"{self.blocks.pool.num_blocks} in total; shorten the request or give the cache "
                "more memory"
            )
        if len(self.waiting) >= self.config.max_waiting:
            raise AdmissionError(
                f"{len(self.waiting)} requests are waiting already, the most this engine queues; "
                "try again later"
            )
