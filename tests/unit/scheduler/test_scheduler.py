"""What runs in a step, in which order, and what is refused."""

from __future__ import annotations

import math

import pytest

from gnomon.engine.cache.manager import BlockManager
from gnomon.engine.errors import AdmissionError
from gnomon.engine.scheduler.config import SchedulerConfig
from gnomon.engine.scheduler.request import FinishReason, Request, SamplingParams
from gnomon.engine.scheduler.scheduler import Scheduler
from gnomon.engine.scheduler.step import Progress, Step

EOS = 99


def scheduler(
    *, blocks: int = 64, size: int = 4, seqs: int = 4, budget: int = 16, length: int = 200
) -> Scheduler:
    config = SchedulerConfig(seqs, budget, length, frozenset({EOS}), max_waiting=8)
    return Scheduler(config, BlockManager(blocks, size, "salt"))


def request(
    name: str, prompt: int, max_tokens: int = 8, *, first: int = 0, **sampling: object
) -> Request:
    ids = tuple(range(first, first + prompt))
    params = SamplingParams(max_tokens=max_tokens, **sampling)  # type: ignore[arg-type]
    return Request(name, ids, params)


def advance(engine: Scheduler, token: int = 7) -> tuple[Step, tuple[Progress, ...]]:
    step = engine.schedule()
    return step, engine.commit(step, {c.request.id: token for c in step.chunks if c.samples})


def sizes(step: Step) -> dict[str, int]:
    return {chunk.request.id: chunk.stop - chunk.start for chunk in step.chunks}


def test_decode_rows_and_prefill_chunks_share_a_step_and_its_budget() -> None:
    engine = scheduler(budget=10)
    engine.add(request("a", 6))
    engine.add(request("b", 20, first=1000))
    assert sizes(advance(engine)[0]) == {"a": 6, "b": 4}
    assert sizes(advance(engine)[0]) == {"a": 1, "b": 9}
    assert sizes(advance(engine)[0]) == {"a": 1, "b": 7}
    assert sizes(advance(engine)[0]) == {"a": 1, "b": 1}


def test_a_long_prefill_never_delays_a_decoding_request() -> None:
    engine = scheduler(budget=4, blocks=200, length=500)
    engine.add(request("a", 3, max_tokens=50, ignore_eos=True))
    advance(engine)
    engine.add(request("b", 300, first=1000))
    for _ in range(40):
        step, gained = advance(engine)
        assert sizes(step) == {"a": 1, "b": 3}
        assert [p.request.id for p in gained] == ["a"]


def test_a_later_request_never_overtakes_one_that_does_not_fit_yet() -> None:
    engine = scheduler(blocks=6, size=4)
    engine.add(request("a", 12, max_tokens=8))  # three blocks, later five
    engine.add(request("b", 16, max_tokens=4, first=1000))  # four blocks: must wait
    engine.add(request("c", 2, max_tokens=1, first=2000))  # would fit
    assert sizes(advance(engine)[0]) == {"a": 12}
    assert [r.id for r in engine.waiting] == ["b", "c"]


def test_a_request_waits_until_all_the_tokens_it_has_fit() -> None:
    engine = scheduler(blocks=8, size=4, budget=8)
    engine.add(request("a", 18, max_tokens=2))  # five blocks
    engine.add(request("b", 13, first=1000))  # four: its first chunk would fit, its last would not
    while engine.running or engine.waiting[0].id == "a":
        assert [r.id for r in engine.waiting][-1:] == ["b"]
        advance(engine)
    assert sizes(advance(engine)[0]) == {"b": 8}
    assert engine.counters.preemptions == 0


def test_the_latest_arrived_is_preempted_and_comes_back_first() -> None:
    engine = scheduler(blocks=4, size=4)
    for i, name in enumerate("abc"):
        engine.add(request(name, 4, max_tokens=8, first=1000 * i))
    assert sizes(advance(engine)[0]) == {"a": 4, "b": 4, "c": 4}
    step, _ = advance(engine)  # each needs a second block and there is one
    assert step.preempted == ("c",)
    assert sizes(step) == {"a": 1, "b": 1}
    assert [r.id for r in engine.waiting] == ["c"]
    engine.add(request("d", 1, first=5000))
    while engine.has_work:
        running = {r.id for r in engine.running}
        assert not ("d" in running and "c" in {r.id for r in engine.waiting})
        advance(engine)
    assert engine.blocks.pool.num_used == 0


def test_a_preempted_request_keeps_its_tokens_and_finds_its_full_blocks_again() -> None:
    engine = scheduler(blocks=5, size=4)
    engine.add(request("a", 7, max_tokens=8))
    victim = request("b", 8, max_tokens=8, first=1000)
    engine.add(victim)
    while not victim.preemptions:
        advance(engine)
    tokens = list(victim.output_ids)
    assert tokens
    assert not victim.block_ids
    assert victim.num_computed == 0
    while engine.has_work:
        advance(engine)
    assert victim.output_ids[: len(tokens)] == tokens
    assert victim.finish_reason is FinishReason.LENGTH
    assert len(victim.output_ids) == 8


def test_only_so_many_requests_run() -> None:
    engine = scheduler(seqs=2)
    for i in range(3):
        engine.add(request(str(i), 2, first=100 * i))
    assert sizes(advance(engine)[0]) == {"0": 2, "1": 2}


def test_generated_blocks_are_found_by_the_next_turn() -> None:
    engine = scheduler(size=4)
    first = request("a", 6, max_tokens=7, ignore_eos=True)
    engine.add(first)
    while engine.has_work:
        advance(engine)
    turn = Request("b", (*first.prompt_ids, *first.output_ids, 1, 2), SamplingParams(max_tokens=1))
    engine.add(turn)
    advance(engine)
    assert turn.num_cached == 12  # of 6 + 7 tokens the last was never computed
    assert engine.counters.prefix_hits == 12
    assert engine.counters.prefix_queries == 6 + 15


@pytest.mark.parametrize(
    ("sampling", "tokens", "reason", "count"),
    [
        ({}, [1, 2, EOS, 3], FinishReason.STOP, 3),
        ({"ignore_eos": True}, [1, EOS, EOS, 3, 4, 5, 6, 7], FinishReason.LENGTH, 8),
        ({"stop_token_ids": (2,)}, [1, 2, 3], FinishReason.STOP, 2),
        ({"stop_token_ids": (2,), "ignore_eos": True}, [EOS, 2], FinishReason.STOP, 2),
        ({"max_tokens": 2}, [1, EOS], FinishReason.STOP, 2),  # ends by itself at the limit
        ({"max_tokens": 1}, [1], FinishReason.LENGTH, 1),
    ],
)
def test_why_a_request_ends(
    sampling: dict[str, object], tokens: list[int], reason: FinishReason, count: int
) -> None:
    engine = scheduler()
    one = request("a", 3, **{"max_tokens": 8, **sampling})  # type: ignore[arg-type]
    engine.add(one)
    for token in tokens:
        if engine.has_work:
            advance(engine, token)
    assert (one.finish_reason, len(one.output_ids)) == (reason, count)
    assert engine.blocks.pool.num_used == 0


def test_an_abort_frees_the_blocks_at_once_wherever_the_request_stands() -> None:
    engine = scheduler(seqs=1)
    engine.add(request("running", 9))
    engine.add(request("waiting", 9, first=1000))
    advance(engine)
    assert engine.abort("waiting")
    assert engine.abort("running")
    assert not engine.abort("running")
    assert not engine.abort("unknown")
    assert engine.blocks.pool.num_used == 0
    assert not engine.has_work


def test_a_request_aborted_while_its_step_runs_gains_nothing() -> None:
    engine = scheduler()
    engine.add(request("a", 4))
    step = engine.schedule()
    engine.abort("a")
    assert engine.commit(step, {"a": 1}) == ()
    assert len(engine.blocks.index) == 0  # what the step wrote is not trusted


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request("x", 0), "the prompt is empty"),
        (request("x", 3, max_tokens=-1), "max_tokens is -1; it must be at least 0"),
        (request("x", 3, logprobs=-1), "logprobs is -1; it must be at least 0"),
        (request("x", 3, prompt_logprobs=-2), "prompt_logprobs is -2"),
        (
            request("x", 150, max_tokens=51),
            r"maximum context length is 200 tokens, but the request needs 201: 150 in the prompt "
            r"and 51 for the output",
        ),
        (
            request("x", 40, max_tokens=10),
            "needs 13 cache blocks of 4 tokens for 40 prompt and 10 output tokens, but the engine "
            "has 12",
        ),
        (request("x", 3, temperature=-1.0), "temperature is -1.0"),
        (request("x", 3, temperature=math.nan), "temperature is nan"),
        (request("x", 3, temperature=math.inf), "temperature is inf"),
        (request("x", 3, top_p=0.0), "top_p is 0.0; it must be above 0 and at most 1"),
        (request("x", 3, top_p=1.5), "top_p is 1.5"),
        (request("x", 3, top_k=-2), "top_k is -2"),
        (request("x", 3, min_p=2.0), "min_p is 2.0"),
        (request("twin", 3), "a request with the id 'twin' is already running"),
    ],
)
def test_what_can_never_run_is_refused_with_its_numbers(bad: Request, message: str) -> None:
    engine = scheduler(blocks=12, size=4)
    engine.add(request("twin", 3))
    with pytest.raises(AdmissionError, match=message):
        engine.add(bad)
    assert len(engine.waiting) == 1


def test_a_request_that_just_fits_runs_to_its_end() -> None:
    engine = scheduler(blocks=12, size=4)
    one = request("a", 40, max_tokens=9, ignore_eos=True)  # 48 written tokens, 12 blocks
    engine.add(one)
    while engine.has_work:
        advance(engine)
    assert len(one.output_ids) == 9
    assert one.preemptions == 0


def test_the_queue_is_bounded() -> None:
    engine = scheduler()
    for i in range(8):
        engine.add(request(str(i), 3))
    with pytest.raises(AdmissionError, match="8 requests are waiting already"):
        engine.add(request("9", 3))


def test_a_budget_below_the_number_of_requests_is_refused() -> None:
    with pytest.raises(ValueError, match="a budget of 3 tokens a step cannot advance 4 requests"):
        SchedulerConfig(4, 3, 100)
