"""Log probabilities are the model's own, of answers and of prompts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gnomon.engine.errors import AdmissionError, NumericsError
from gnomon.engine.llm import LLM
from gnomon.engine.runner import logprobs
from gnomon.engine.runner.logprobs import score, tiles
from gnomon.engine.scheduler.request import FinishReason, SamplingParams

MakeEngine = Callable[..., LLM]
MakePrompt = Callable[..., tuple[int, ...]]


def params(**more: object) -> SamplingParams:
    options = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}
    return SamplingParams(**(options | more))  # type: ignore[arg-type]


def test_scores_are_those_of_log_softmax_in_order_of_probability() -> None:
    logits = torch.randn((5, 50), generator=torch.Generator().manual_seed(0)) * 4
    expected = logits.double().log_softmax(-1)
    tokens = [3, 0, 49, 7, 7]
    for found, row, token in zip(score(logits, tokens, [0, 1, 5, 50, 4]), expected, tokens,
                                 strict=True):  # fmt: skip
        assert found.logprob == pytest.approx(float(row[token]), abs=1e-5)
        assert found.rank == 1 + int((row > row[token]).sum())
        order = row.argsort(descending=True).tolist()
        assert list(found.top_ids) == order[: len(found.top_ids)]
        assert list(found.top) == pytest.approx([float(row[i]) for i in found.top_ids], abs=1e-5)
    assert [len(s.top) for s in score(logits, tokens, [0, 1, 5, 50, 4])] == [0, 1, 5, 50, 4]


def test_equal_logits_come_by_their_ids_and_share_a_rank() -> None:
    (found,) = score(torch.tensor([[1.0, 2.0, 2.0, 1.0]]), [2], [4])
    assert (found.top_ids, found.rank) == ((1, 2, 0, 3), 1)


def test_scores_of_what_is_no_number_are_an_error() -> None:
    for bad in (torch.nan, torch.inf):
        with pytest.raises(NumericsError):
            score(torch.tensor([[0.0, bad]]), [0], [0])


def test_tiles_bound_the_logits_that_are_alive() -> None:
    for count, vocab_size in ((1, 300), (1000, 300), (5, 1 << 40), (129, 200_000)):
        parts = list(tiles(count, vocab_size))
        assert [i for part in parts for i in range(part.start, part.stop)] == list(range(count))
        longest = max(part.stop - part.start for part in parts)
        assert longest == 1 or longest * vocab_size <= logprobs._TILE_ELEMENTS


@pytest.mark.parametrize(
    "changes",
    [{"temperature": 0.4, "seed": 1}, {"top_k": 3, "temperature": 1.0, "seed": 1},
     {"repetition_penalty": 2.0}, {"logit_bias": ((20, 100.0),)}, {"min_tokens": 3}],
)  # fmt: skip
def test_what_changes_the_choice_does_not_change_the_scores(
    engine: MakeEngine, prompt_of: MakePrompt, changes: dict[str, object]
) -> None:
    prompt = prompt_of(30)
    (changed,) = engine().generate([prompt], params(**changes, logprobs=300))
    plain = dict(zip(changed.logprobs[0].top_ids, changed.logprobs[0].top, strict=True))
    (neutral,) = engine().generate([prompt], params(max_tokens=1, logprobs=300))
    assert neutral.logprobs[0].top_ids == changed.logprobs[0].top_ids
    assert neutral.logprobs[0].top == changed.logprobs[0].top
    for token, scores in zip(changed.token_ids[:1], changed.logprobs[:1], strict=True):
        assert scores.logprob == plain[token]


def test_asking_changes_no_token(engine: MakeEngine, prompt_of: MakePrompt) -> None:
    prompts = [prompt_of(40), prompt_of(20, seed=3)]
    plain = engine().generate(prompts, params(seed=2, temperature=1.0))
    asked = engine().generate(
        prompts, params(seed=2, temperature=1.0, logprobs=2, prompt_logprobs=1)
    )
    assert [c.token_ids for c in asked] == [c.token_ids for c in plain]


@pytest.mark.parametrize("fmt", ["fp32", "mxfp4"])
@pytest.mark.parametrize("budget", [512, 17, 16])
def test_a_prompt_s_scores_are_those_it_would_have_as_an_answer(
    engine: MakeEngine, prompt_of: MakePrompt, fmt: str, budget: int
) -> None:
    prompt = prompt_of(35)
    llm = engine(kv_cache_dtype=fmt, max_num_batched_tokens=budget)
    (answer,) = llm.generate([prompt], params(max_tokens=20, logprobs=5))
    whole = (*prompt, *answer.token_ids)
    for _ in range(2):  # the second time all of it is in the prefix cache
        (scored,) = llm.generate([whole], params(max_tokens=1, prompt_logprobs=5))
        assert scored.num_cached == 0
        assert len(scored.prompt_logprobs) == len(whole) - 1
        assert scored.prompt_logprobs[len(prompt) - 1 :] == answer.logprobs


def test_a_preempted_prompt_is_scored_once_and_whole(
    engine: MakeEngine, prompt_of: MakePrompt
) -> None:
    prompts = [prompt_of(n, seed=n) for n in (50, 60, 70)]
    lonely = engine(enable_prefix_caching=False)
    sampling = params(max_tokens=24, prompt_logprobs=2, logprobs=0)
    expected = [lonely.generate([prompt], sampling)[0] for prompt in prompts]
    llm = engine(num_blocks=14, max_num_batched_tokens=24, max_num_seqs=3, max_model_len=160)
    assert llm.generate(prompts, sampling) == expected
    assert llm.core.stats().preemptions_total > 0


@pytest.mark.parametrize("length", [1, 16, 33, 320])
def test_no_tokens_asked_for_computes_and_scores_the_prompt(
    engine: MakeEngine, prompt_of: MakePrompt, length: int
) -> None:
    llm = engine()
    (found,) = llm.generate([prompt_of(length)], params(max_tokens=0, prompt_logprobs=1))
    assert found.token_ids == ()
    assert found.finish_reason is FinishReason.LENGTH
    assert len(found.prompt_logprobs) == length - 1
    stats = llm.core.stats()
    assert (stats.blocks_used, stats.generation_tokens_total, stats.running) == (0, 0, 0)


def test_no_tokens_beside_others_disturb_nobody(engine: MakeEngine, prompt_of: MakePrompt) -> None:
    llm = engine()
    (expected,) = llm.generate([prompt_of(20)], params())
    both = llm.generate([prompt_of(20), prompt_of(50)], [params(), params(max_tokens=0)])
    assert both[0].token_ids == expected.token_ids
    assert both[1].token_ids == ()


def test_an_abort_leaves_no_scores_behind(engine: MakeEngine, prompt_of: MakePrompt) -> None:
    core = engine(max_num_batched_tokens=16).core
    core.add("a", prompt_of(60), params(prompt_logprobs=1))
    core.step()
    core.abort("a")
    core.add("a", prompt_of(20, seed=9), params(max_tokens=0, prompt_logprobs=1))
    outputs = [output for _ in range(3) for output in core.step()]
    assert [len(output.prompt_logprobs) for output in outputs] == [19]


def test_fewer_than_no_tokens_are_refused(engine: MakeEngine, prompt_of: MakePrompt) -> None:
    with pytest.raises(AdmissionError, match="max_tokens is -1"):
        engine().generate([prompt_of(3)], params(max_tokens=-1))
