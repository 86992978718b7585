from __future__ import annotations

from typing import Any

import pytest
import torch

from gnomon.engine.errors import AdmissionError
from gnomon.engine.runner.adjust import adjust
from gnomon.engine.scheduler.request import FinishReason, Request, SamplingParams

EOS = 1


def adjusted(
    prompt: tuple[int, ...] = (0,), output: tuple[int, ...] = (), **more: Any
) -> list[float]:
    request = Request("r", prompt, SamplingParams(**more), output_ids=list(output))
    plain = Request("p", prompt, SamplingParams(), output_ids=list(output))
    logits = torch.tensor([[1.0, 2.0, -3.0, 4.0]] * 2)
    adjust(logits, [request, plain], (EOS,))
    assert logits[1].tolist() == [1.0, 2.0, -3.0, 4.0]
    return logits[0].tolist()


def test_biases_are_added() -> None:
    assert adjusted(logit_bias=((0, 2.5), (3, -100.0))) == [3.5, 2.0, -3.0, -96.0]


def test_presence_counts_once_and_frequency_every_time() -> None:
    assert adjusted(output=(3, 3, 0), presence_penalty=0.5) == [0.5, 2.0, -3.0, 3.5]
    assert adjusted(output=(3, 3, 0), frequency_penalty=0.5) == [0.5, 2.0, -3.0, 3.0]


def test_repetition_makes_seen_tokens_less_likely_whatever_their_sign() -> None:
    assert adjusted(prompt=(2,), output=(3,), repetition_penalty=2.0) == [1.0, 2.0, -6.0, 2.0]


def test_no_end_before_the_least_length() -> None:
    inf = float("inf")
    assert adjusted(min_tokens=1, stop_token_ids=(2,)) == [1.0, -inf, -inf, 4.0]
    assert adjusted(output=(0,), min_tokens=1, stop_token_ids=(2,)) == [1.0, 2.0, -3.0, 4.0]


def test_the_engine_applies_them_in_any_batch(engine: Any, prompt_of: Any) -> None:
    llm = engine(max_num_batched_tokens=40)
    never_end = SamplingParams(temperature=0.0, max_tokens=12, logit_bias=((EOS, 100.0),))
    least = SamplingParams(temperature=0.0, max_tokens=12, logit_bias=((EOS, 100.0),), min_tokens=7)
    varied = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, presence_penalty=2.0,
                            logit_bias=tuple((t, 50.0) for t in range(20, 32)))  # fmt: skip
    prompts = [prompt_of(n) for n in (20, 33, 47)]
    params = [never_end, least, varied]
    together = llm.generate(prompts, params)
    alone = [llm.generate([p], s)[0] for p, s in zip(prompts, params, strict=True)]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    assert together[0].token_ids == (EOS,)
    assert len(together[1].token_ids) == 8
    assert together[1].finish_reason is FinishReason.STOP
    assert set(together[2].token_ids) <= set(range(20, 32))


def test_a_bias_of_no_token_is_refused(engine: Any, prompt_of: Any) -> None:
    params = SamplingParams(max_tokens=2, logit_bias=((10**6, 1.0),))
    with pytest.raises(AdmissionError, match="logit_bias"):
        engine().generate([prompt_of(3)], params)
