"""What runs in the next step: decode rows and prefill chunks under one token budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from gnomon.engine.cache.manager import BlockManager
from gnomon.engine.errors import AdmissionError
from gnomon.engine.scheduler.admission import check_admission
from gnomon.engine.scheduler.config import SchedulerConfig
from gnomon.engine.scheduler.request import FinishReason, Request, RequestState
from gnomon.engine.scheduler.step import Progress, Step, StepInTheMaking


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
        if request.id in self._live:
            raise AdmissionError(f"a request with the id {request.id!r} is already running")
        check_admission(request, self.config, self.blocks)
        if len(self.waiting) >= self.config.max_waiting:
            raise AdmissionError(
                f"{len(self.waiting)} requests are waiting already, the most this engine queues; "
                "try again later"
            )
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
        step = StepInTheMaking(self.config.max_num_batched_tokens)
        # A stable sort: decode rows first, and by arrival among themselves and among prefills.
        for request in sorted(self.running, key=lambda r: r.num_tokens - r.num_computed > 1):
            if request.state is not RequestState.RUNNING:
                continue  # preempted by an earlier one of this loop
            count = min(request.num_tokens - request.num_computed, step.budget)
            if count and self._grow(request, request.num_computed + count, step):
                step.put(request, count)
        self._admit_waiting(step)
        return step.done()

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
                if not request.sampling.max_tokens and chunk.stop == request.num_tokens:
                    self._finish(request, FinishReason.LENGTH)
                    progress.append(Progress(request, None, FinishReason.LENGTH))
                continue
            token = sampled[request.id]
            request.output_ids.append(token)
            self.counters.generation_tokens += 1
            reason = self._reason_to_stop(request, token)
            if reason is not None:
                self._finish(request, reason)
            progress.append(Progress(request, token, reason))
        return tuple(progress)

    def _grow(self, request: Request, num_tokens: int, step: StepInTheMaking) -> bool:
        """Give a running request blocks, taking them from the latest; False if it was itself."""
        while not self.blocks.extend(request.table, num_tokens):
            victim = self.running[-1]
            self._preempt(victim)
            step.preempt(victim)
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

    def _admit_waiting(self, step: StepInTheMaking) -> None:
        """Start waiting requests in order, up to the first that does not fit.

        Running prefills need no reserve here: one that is not done has used up the budget.
        """
        while self.waiting and step.budget and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            most = 0 if request.scores_prompt else request.num_tokens - 1
            entries = self.blocks.match(request.tokens, most)
            if not self.blocks.fits(entries, request.num_tokens):
                return
            self.waiting.popleft()
            self.blocks.adopt(request.table, entries)
            request.num_computed = len(entries) * self.blocks.block_size
            if not request.preemptions:
                self._count_first_admission(request)
            request.state = RequestState.RUNNING
            self.running.append(request)
            count = min(request.num_tokens - request.num_computed, step.budget)
            if not self.blocks.extend(request.table, request.num_computed + count):
                raise AssertionError(f"request {request.id} was admitted without room")
            step.put(request, count)

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
