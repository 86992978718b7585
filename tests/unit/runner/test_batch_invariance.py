"""A request's logits are the same to the last bit, whatever happens around it."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnomon.engine.llm import LLM
from gnomon.engine.runner.runner import ModelRunner, StepResult
from gnomon.engine.scheduler.request import SamplingParams
from gnomon.engine.scheduler.step import Chunk

MakeEngine = Callable[..., LLM]
MakePrompt = Callable[..., tuple[int, ...]]

FORMATS = ["fp32", "bf16", "fp8", "mxfp4", "nvfp4"]
TOKENS = 8
SMALL_POOL = 12


class Watch:
    """Sees the logits that choose each token of each request."""

    def __init__(self, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.logits: dict[str, list[torch.Tensor]] = defaultdict(list)
        compute, run = runner.model.logits, runner.run
        last: list[torch.Tensor] = []

        def logits(hidden: torch.Tensor) -> torch.Tensor:
            last.append(compute(hidden))
            return last[-1].clone()  # what follows changes it

        def watched(chunks: Sequence[Chunk], *more: Any) -> StepResult:
            last.clear()
            result = run(chunks, *more)
            sampling = [chunk.request.id for chunk in chunks if chunk.samples]
            for request_id, row in zip(sampling, last[-1] if sampling else (), strict=True):
                self.logits[request_id].append(row)
            return result

        monkeypatch.setattr(runner.model, "logits", logits)
        monkeypatch.setattr(runner, "run", watched)


@pytest.fixture(scope="module")
def work(prompt_of: MakePrompt) -> list[tuple[tuple[int, ...], SamplingParams]]:
    """Prompts at and off block boundaries that share beginnings; greedy and seeded."""
    lengths = (1, 3, 15, 16, 17, 40, 48, 75, 120)
    prompts = [prompt_of(n) for n in lengths] + [prompt_of(n, seed=1) for n in (33, 64)]
    options: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"top_p": 0.9},
        {"top_k": 20, "repetition_penalty": 1.2},
        {"min_p": 0.02, "logprobs": 3},
    ]
    return [
        (p, SamplingParams(seed=i, max_tokens=TOKENS, ignore_eos=True, **options[i % 4]))
        for i, p in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def engines(engine: MakeEngine) -> Callable[..., LLM]:
    """Engines by their options, each made once."""
    made: dict[str, LLM] = {}

    def get(**options: Any) -> LLM:
        key = repr(sorted(options.items()))
        if key not in made:
            made[key] = engine(**options)
        return made[key]

    return get


Alone = dict[str, tuple[list[torch.Tensor], list[int]]]


@pytest.fixture(scope="module")
def alone(
    engines: Callable[..., LLM], work: list[tuple[tuple[int, ...], SamplingParams]]
) -> dict[str, Alone]:
    """Logits and tokens of each request by itself, by cache format."""
    found: dict[str, Alone] = {}
    for fmt in FORMATS:
        core = engines(kv_cache_dtype=fmt, enable_prefix_caching=False).core
        with pytest.MonkeyPatch.context() as patch:
            watch = Watch(core.runner, patch)
            for at, (prompt, sampling) in enumerate(work):
                core.add(f"r{at}", prompt, sampling)
                tokens = [t for step in steps_of(core) for o in step for t in o.token_ids]
                found.setdefault(fmt, {})[f"r{at}"] = (watch.logits[f"r{at}"], tokens)
    return found


def steps_of(core: Any) -> Iterator[Any]:
    while core.has_work:
        yield core.step()


def check(watch: Watch, tokens: dict[str, list[int]], expected: Alone, aborted: set[str]) -> None:
    """Every token's logits are those of the request alone, bit by bit, as far as it came."""
    for request_id, (logits, ids) in expected.items():
        got = watch.logits[request_id]
        assert len(got) == len(ids) or request_id in aborted
        assert tokens[request_id] == ids[: len(tokens[request_id])]
        for at, row in enumerate(got):
            assert torch.equal(row, logits[at]), f"{request_id}, token {at}"


@pytest.mark.parametrize("fmt", FORMATS)
@given(
    order=st.permutations(range(11)),
    budget=st.sampled_from([7, 16, 33, 64, 512]),
    blocks=st.sampled_from([SMALL_POOL, 200]),
    eager=st.floats(0.1, 1.0),
    dropped=st.sets(st.integers(0, 10), max_size=3),
    seed=st.integers(0, 9),
)
@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_company_chunks_hits_aborts_and_preemption_change_no_bit(
    engines: Callable[..., LLM],
    work: list[tuple[tuple[int, ...], SamplingParams]],
    alone: dict[str, Alone],
    fmt: str,
    order: list[int],
    budget: int,
    blocks: int,
    eager: float,
    dropped: set[int],
    seed: int,
) -> None:
    core = engines(
        kv_cache_dtype=fmt,
        max_num_batched_tokens=budget,
        max_num_seqs=min(budget, 11),
        num_blocks=blocks,
        max_model_len=160,
    ).core
    chance = random.Random(seed)
    tokens: dict[str, list[int]] = defaultdict(list)
    waiting, aborted = list(order), set[str]()
    with pytest.MonkeyPatch.context() as patch:
        watch = Watch(core.runner, patch)
        while waiting or core.has_work:
            if waiting and (chance.random() < eager or not core.has_work):
                at = waiting.pop()
                core.add(f"r{at}", *work[at])
            for output in core.step():
                tokens[output.id] += output.token_ids
            for at in dropped:
                if tokens[f"r{at}"] and f"r{at}" not in aborted and chance.random() < 0.3:
                    core.abort(f"r{at}")
                    aborted.add(f"r{at}")
    check(watch, tokens, alone[fmt], aborted)


def test_the_pools_above_are_small_enough_to_preempt(
    engines: Callable[..., LLM], work: list[tuple[tuple[int, ...], SamplingParams]]
) -> None:
    llm = engines(
        max_num_batched_tokens=512, max_num_seqs=11, num_blocks=SMALL_POOL, max_model_len=160
    )
    llm.generate([prompt for prompt, _ in work], [sampling for _, sampling in work])
    assert llm.core.stats().preemptions_total > 0


def test_more_threads_than_one_keep_the_bits_too(
    engines: Callable[..., LLM], work: list[tuple[tuple[int, ...], SamplingParams]]
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        lonely = engines(kv_cache_dtype="mxfp4", enable_prefix_caching=False)
        few = [work[at] for at in (2, 3, 7, 9)]
        expected = [lonely.generate([prompt], [sampling])[0] for prompt, sampling in few]
        crowd = engines(kv_cache_dtype="mxfp4", max_num_batched_tokens=64, max_num_seqs=11)
        found = crowd.generate([p for p, _ in few], [s for _, s in few])
    finally:
        torch.set_num_threads(before)
    assert [c.token_ids for c in found] == [c.token_ids for c in expected]
    assert [c.logprobs for c in found] == [c.logprobs for c in expected]


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "bfloat16"},
        {"expert_weights": "mxfp4", "linear_weights": "mxfp8"},
        {"expert_weights": "nvfp4", "kv_cache_dtype": "mxfp4", "index_cache_dtype": "bf16"},
        {"use_index_cache": True, "index_topk_freq": 2},
    ],
    ids=lambda options: " ".join(options),
)
def test_other_dtypes_weights_and_reused_selections_keep_the_bits_too(
    engines: Callable[..., LLM],
    work: list[tuple[tuple[int, ...], SamplingParams]],
    options: dict[str, Any],
) -> None:
    few = [(prompt, msgspec.structs.replace(s, logprobs=20)) for prompt, s in work[1::2]]
    lonely = engines(**options, enable_prefix_caching=False)
    expected = [lonely.generate([prompt], [sampling])[0] for prompt, sampling in few]
    crowd = engines(**options, max_num_batched_tokens=33, max_num_seqs=5)
    for _ in range(2):
        found = crowd.generate([p for p, _ in few], [s for _, s in few])
        assert [c.token_ids for c in found] == [c.token_ids for c in expected]
        assert [c.logprobs for c in found] == [c.logprobs for c in expected]
