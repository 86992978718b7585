"""Any sequence of add, step, abort and preemption keeps blocks whole and tokens right.

The toy model's next token is a hash of the full token history as read back through the blocks, so
a block that is reused, shared or evicted wrongly changes the tokens.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from gnomon.engine.cache.host_tier import HostTier, Mode
from gnomon.engine.cache.manager import BlockManager
from gnomon.engine.cache.prefix import PrefixEntry, PrefixIndex
from gnomon.engine.scheduler.config import SchedulerConfig
from gnomon.engine.scheduler.request import FinishReason, Request, RequestState, SamplingParams
from gnomon.engine.scheduler.scheduler import Scheduler
from gnomon.engine.scheduler.step import Step

VOCAB = 5
EOS = 0


def next_token(history: list[int]) -> int:
    return hashlib.blake2b(bytes(history), digest_size=2).digest()[0] % VOCAB


def expected_output(prompt: tuple[int, ...], max_tokens: int, ignore_eos: bool) -> list[int]:
    history, output = list(prompt), []
    while len(output) < max_tokens:
        token = next_token(history)
        history.append(token)
        output.append(token)
        if token == EOS and not ignore_eos:
            break
    return output


class CollidingIndex(PrefixIndex):
    """An index whose hash is so bad that hits must be decided by comparing."""

    def _key(self, parent: PrefixEntry | None, tokens: bytes) -> int:
        return super()._key(parent, tokens) % 5


@dataclass
class ToyRunner:
    """A paged store of token ids, and a model that reads its context from it alone."""

    block_size: int
    store: dict[tuple[int, int], int] = field(default_factory=dict)
    host: dict[int, list[int]] = field(default_factory=dict)

    def move(self, tier: HostTier | None) -> None:
        """Run the host tier's transfers, as an engine does before and after a forward."""
        if tier is None:
            return
        transfers = tier.take()
        for transfer in transfers:
            places = [(transfer.block, offset) for offset in range(self.block_size)]
            if transfer.load:
                self.store |= dict(zip(places, self.host[transfer.slot], strict=True))
            else:
                self.host[transfer.slot] = [self.store[place] for place in places]
        tier.done(transfers)
        tier.check()
        assert tier.num_pinned == 0

    def run(self, step: Step) -> dict[str, int]:
        for chunk in step.chunks:  # every row writes before any row reads, as in a forward
            tokens = chunk.request.tokens(chunk.start, chunk.stop)
            for position, token in enumerate(tokens, start=chunk.start):
                self.store[self._slot(chunk.request, position)] = token
        return {
            chunk.request.id: next_token(
                [self.store[self._slot(chunk.request, p)] for p in range(chunk.stop)]
            )
            for chunk in step.chunks
            if chunk.samples
        }

    def _slot(self, request: Request, position: int) -> tuple[int, int]:
        return request.block_ids[position // self.block_size], position % self.block_size


def check_blocks(scheduler: Scheduler) -> None:
    """Reference counts, states, sharing and publication agree with the live requests."""
    blocks = scheduler.blocks
    blocks.pool.check()
    live = [*scheduler.running, *scheduler.waiting]
    held = Counter(block for request in live for block in request.block_ids)
    for block in range(blocks.pool.num_blocks):
        assert blocks.pool.holders(block) == held[block]
    assert blocks.pool.num_used == len(held)
    content: dict[int, tuple[int, ...]] = {}
    for request in live:
        assert len(set(request.block_ids)) == len(request.block_ids)
        assert [e.block for e in request.table.entries] == request.block_ids[
            : len(request.table.entries)
        ]
        for i, block in enumerate(request.block_ids):
            prefix = tuple(request.tokens(0, (i + 1) * blocks.block_size))
            if held[block] > 1:  # shared: complete, computed, and the same tokens for all
                assert (i + 1) * blocks.block_size <= request.num_computed
                assert content.setdefault(block, prefix) == prefix
    for entry in blocks.index._entries.values():
        assert entry.parent is None or blocks.index.holds(entry.parent.block)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(2, 12),
        block_size=st.integers(1, 4),
        max_num_seqs=st.integers(1, 4),
        extra_budget=st.integers(0, 9),
        prefix_caching=st.booleans(),
        colliding=st.booleans(),
        slots=st.integers(0, 12),
        mode=st.sampled_from(["eager", "lazy"]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        extra_budget: int,
        prefix_caching: bool,
        colliding: bool,
        slots: int,
        mode: Mode,
    ) -> None:
        self.runner = ToyRunner(block_size)
        self.tier = HostTier(slots, mode) if slots else None
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_seqs + extra_budget,
                max_model_len=num_blocks * block_size + 1,
                eos_token_ids=frozenset({EOS}),
            ),
            BlockManager(num_blocks, block_size, "toy", prefix_caching, self.tier),
        )
        if colliding:
            self.scheduler.blocks.index = CollidingIndex("toy", digests=self.tier is not None)
        self.requests: dict[str, Request] = {}
        self.in_flight: Step | None = None

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        max_tokens=st.integers(0, 20),  # 0 computes the prompt and nothing else
        ignore_eos=st.booleans(),
    )
    def add(self, prompt: list[int], max_tokens: int, ignore_eos: bool) -> None:
        limit = self.scheduler.config.max_model_len
        prompt = prompt[: limit - 1]
        request = Request(
            id=str(len(self.requests)),
            prompt_ids=tuple(prompt),
            sampling=SamplingParams(
                max_tokens=min(max_tokens, limit - len(prompt)), ignore_eos=ignore_eos
            ),
        )
        self.scheduler.add(request)
        self.requests[request.id] = request

    @precondition(lambda self: self.in_flight is None and self.scheduler.has_work)
    @rule()
    def schedule(self) -> None:
        self.in_flight = step = self.scheduler.schedule()
        self.runner.move(self.tier)
        assert step.chunks, "there is work, so something must run"
        assert step.num_tokens <= self.scheduler.config.max_num_batched_tokens
        assert len(self.scheduler.running) <= self.scheduler.config.max_num_seqs
        scheduled = {chunk.request.id: chunk for chunk in step.chunks}
        assert len(scheduled) == len(step.chunks)
        for chunk in step.chunks:  # what samples needs the logits of a row of this step
            assert chunk.request.num_computed == chunk.start < chunk.stop
            asked = chunk.request.sampling.max_tokens > 0
            assert chunk.samples == (asked and chunk.stop == chunk.request.num_tokens)
        for request in self.scheduler.running:  # nobody who runs is ever left out
            assert request.id in scheduled
        arrivals = [r.arrival for r in (*self.scheduler.running, *self.scheduler.waiting)]
        assert arrivals == sorted(arrivals), "someone was overtaken"

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def commit(self) -> None:
        assert self.in_flight is not None
        sampled = self.runner.run(
            Step(tuple(c for c in self.in_flight.chunks if c.request.block_ids))
        )
        self.scheduler.commit(self.in_flight, sampled)
        self.runner.move(self.tier)
        self.in_flight = None

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = self.requests[data.draw(st.sampled_from(sorted(self.requests)))]
        was_live = request.state is not RequestState.FINISHED
        assert self.scheduler.abort(request.id) is was_live
        assert not request.block_ids

    @rule(host=st.booleans())
    def flush(self, host: bool) -> None:
        if self.in_flight is None:
            self.scheduler.blocks.flush(host=host)
            self.runner.move(self.tier)
            assert self.scheduler.blocks.pool.num_cached == 0

    @invariant()
    def blocks_are_whole(self) -> None:
        if hasattr(self, "scheduler"):
            check_blocks(self.scheduler)

    @invariant()
    def outputs_are_those_of_a_lone_request(self) -> None:
        for request in getattr(self, "requests", {}).values():
            expected = expected_output(
                request.prompt_ids, request.sampling.max_tokens, request.sampling.ignore_eos
            )
            if request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert request.output_ids == expected
            else:
                assert request.output_ids == expected[: len(request.output_ids)]

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        if self.in_flight is not None:
            self.commit()
        steps = 0
        while self.scheduler.has_work:
            self.schedule()
            self.commit()
            check_blocks(self.scheduler)
            steps += 1
            assert steps < 5000, "the scheduler does not finish"
        self.outputs_are_those_of_a_lone_request()
        assert all(r.finish_reason is not None for r in self.requests.values())
        assert self.scheduler.blocks.pool.num_used == 0


TestScheduler = pytest.mark.timeout(120)(SchedulerMachine.TestCase)
TestScheduler.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
