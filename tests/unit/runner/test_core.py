"""The same tokens come out whatever the cache, the chunks, the pool and the neighbours are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gnomon.engine.errors import AdmissionError
from gnomon.engine.llm import LLM, Completion
from gnomon.engine.scheduler.request import FinishReason, SamplingParams

MakeEngine = Callable[..., LLM]
MakePrompt = Callable[..., tuple[int, ...]]


def greedy(max_tokens: int = 12, **more: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def work(prompt_of: MakePrompt) -> tuple[list[tuple[int, ...]], list[SamplingParams]]:
    """Prompts that share beginnings, at and off block boundaries; greedy and seeded."""
    prompts = [prompt_of(n) for n in (1, 15, 16, 17, 47, 48, 49, 160, 200)]
    prompts += [prompt_of(n, seed=1) for n in (64, 100)]
    prompts += [(*prompt_of(40), *prompt_of(70, seed=2)), prompt_of(48)]
    sampling = [
        greedy(24)
        if i % 2
        else SamplingParams(temperature=1.0, top_p=0.95, seed=i, max_tokens=24, ignore_eos=True)
        for i in range(len(prompts))
    ]
    return prompts, sampling


def tokens(completions: list[Completion]) -> list[tuple[int, ...]]:
    return [c.token_ids for c in completions]


@pytest.fixture(scope="session")
def alone(
    engine: MakeEngine, work: tuple[list[tuple[int, ...]], list[SamplingParams]]
) -> list[tuple[int, ...]]:
    """Each request by itself, whole prompts, no cache of prefixes, all the blocks it wants."""
    llm = engine(enable_prefix_caching=False, max_num_batched_tokens=512)
    return [
        tokens(llm.generate([prompt], [params]))[0] for prompt, params in zip(*work, strict=True)
    ]


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize(
    ("budget", "seqs", "blocks"),
    [
        (512, 13, 200),
        (7, 3, 200),
        (16, 3, 200),
        (17, 13, 200),
        (37, 5, 20),
        (512, 13, 20),
        (40, 13, 24),
    ],
)
def test_batches_chunks_hits_and_preemption_do_not_change_tokens(
    engine: MakeEngine,
    work: tuple[list[tuple[int, ...]], list[SamplingParams]],
    alone: list[tuple[int, ...]],
    prefix_caching: bool,
    budget: int,
    seqs: int,
    blocks: int,
) -> None:
    llm = engine(
        enable_prefix_caching=prefix_caching,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        num_blocks=blocks,
    )
    for _ in range(2):  # the second time over a cache full of the first
        assert tokens(llm.generate(*work)) == alone
    stats = llm.core.stats()
    assert (stats.preemptions_total > 0) == (blocks < 30 and seqs > 3)
    assert (stats.prefix_hits_total > 0) == prefix_caching
    assert (stats.blocks_used, stats.running, stats.waiting) == (0, 0, 0)


@pytest.mark.parametrize(
    ("length", "cached"),
    [(64, 48), (65, 64), (63, 48), (49, 48), (48, 32), (47, 32), (17, 16), (16, 0), (1, 0)],
)
def test_a_prefix_hit_recomputes_at_least_the_last_token(
    engine: MakeEngine, prompt_of: MakePrompt, length: int, cached: int
) -> None:
    llm, fresh = engine(), engine(enable_prefix_caching=False)
    llm.generate([prompt_of(64)], greedy(1))
    hit = llm.generate([prompt_of(length)], greedy())[0]
    assert hit.num_cached == cached
    assert hit.token_ids == fresh.generate([prompt_of(length)], greedy())[0].token_ids


@pytest.mark.parametrize("fmt", ["bf16", "fp8", "mxfp4", "nvfp4"])
def test_a_conversation_finds_its_own_answers_in_every_cache_format(
    engine: MakeEngine, prompt_of: MakePrompt, fmt: str
) -> None:
    llm = engine(kv_cache_dtype=fmt)
    turn = prompt_of(30)
    for _ in range(3):
        answer = llm.generate([turn], greedy(20))[0]
        assert answer.num_cached == 0 if len(turn) == 30 else answer.num_cached > len(turn) // 2
        turn = (*turn, *answer.token_ids, 11, 12, 13)


def test_the_same_engine_seed_gives_the_same_unseeded_tokens(
    engine: MakeEngine, prompt_of: MakePrompt
) -> None:
    free = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True)
    prompts = [prompt_of(20)] * 3
    once, again = engine(seed=3), engine(seed=3)
    first = tokens(once.generate(prompts, free))
    assert len(set(first)) == 3
    assert first == tokens(again.generate(prompts, free))
    assert first != tokens(engine(seed=4).generate(prompts, free))
    assert first != tokens(once.generate(prompts, free))


def test_generation_stops_at_an_end_token_unless_told_otherwise(
    engine: MakeEngine, prompt_of: MakePrompt
) -> None:
    llm = engine()
    free = llm.generate([prompt_of(20)], greedy(20))[0]
    third = free.token_ids[2]
    stopped = llm.generate([prompt_of(20)], greedy(20, stop_token_ids=(third,)))[0]
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(third) + 1]
    assert stopped.finish_reason is FinishReason.STOP
    assert free.finish_reason is FinishReason.LENGTH


def test_an_abort_frees_blocks_before_the_next_step(
    engine: MakeEngine, prompt_of: MakePrompt
) -> None:
    core = engine().core
    core.add("a", prompt_of(100), greedy(50))
    core.add("b", prompt_of(33, seed=5), greedy(50))
    core.step()
    core.step()
    assert core.stats().blocks_used == 7 + 3
    core.abort("a")
    assert core.stats().blocks_used == 3
    assert [output.id for output in core.step()] == ["b"]


def test_a_token_outside_the_vocabulary_is_refused(engine: MakeEngine) -> None:
    llm = engine()
    for bad in (-1, 300):
        with pytest.raises(AdmissionError, match="a token id outside 0 to 299"):
            llm.generate([[5, bad]], greedy())
    assert not llm.core.has_work


def test_facts_tell_what_is_allocated_and_not_what_was_asked(engine: MakeEngine) -> None:
    facts = engine(kv_cache_dtype="fp4", index_cache_dtype="bf16", seed=9).facts
    assert (facts.kv_cache_dtype, facts.index_cache_dtype) == ("mxfp4", "bf16")
    assert facts.block_size == 16
    assert facts.block_bytes == 3 * 2 * 2 * 16 * (16 + 1) + 2 * 16 * 32 * 2  # one scale a group
    assert (facts.num_blocks, facts.max_model_len, facts.seed) == (200, 320, 9)
    assert sorted(facts.layouts.values()) == [272, 272, 1024]  # K and V differ in order
    assert (facts.backend, facts.compute_dtype) == ("reference", "float32")
    assert len(facts.model_fingerprint) == 64
