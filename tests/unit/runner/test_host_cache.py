"""The host tier in a whole engine: restored blocks give the tokens that computed ones give."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gnomon.engine.errors import StartupRefused
from gnomon.engine.llm import LLM
from gnomon.engine.scheduler.request import SamplingParams

BLOCK = 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
Make = Callable[..., LLM]
Prompt = Callable[..., tuple[int, ...]]


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("layout", ["fp32", "bf16", "fp8", "mxfp4", "nvfp4"])
def test_restored_prompts_give_the_same_tokens_with_exact_accounting(
    engine: Make, prompt_of: Prompt, layout: str, mode: str
) -> None:
    llm = engine(kv_cache_dtype=layout, host_cache_bytes=8 << 20, host_cache_mode=mode)
    lengths = [33, 64, 100, 161, 250]  # on and off block boundaries
    prompts = [prompt_of(length, seed=length) for length in lengths]
    cold = llm.generate(prompts, GREEDY)
    assert [c.num_cached for c in cold] == [0] * 5
    llm.core.flush_cache()
    assert llm.core.stats().blocks_cached == 0
    restored = llm.generate(prompts, GREEDY)
    assert [c.token_ids for c in restored] == [c.token_ids for c in cold]
    blocks = [(length - 1) // BLOCK for length in lengths]
    assert [c.num_cached for c in restored] == [BLOCK * n for n in blocks]
    stats = llm.core.stats()
    assert stats.host_loaded_tokens_total == BLOCK * sum(blocks)
    assert stats.host_loaded_bytes_total == sum(blocks) * llm.facts.block_bytes
    assert stats.host_saved_bytes_total == stats.host_blocks_used * llm.facts.block_bytes
    assert llm.core.tier is not None
    assert llm.core.tier.num_pinned == 0
    llm.core.tier.check()


def test_more_sessions_than_the_device_holds_come_back_from_the_host(
    engine: Make, prompt_of: Prompt
) -> None:
    prompts = [prompt_of(150, seed=seed) for seed in range(6)]
    plain = engine(num_blocks=24, max_model_len=320)
    expected = [plain.generate([prompt], GREEDY)[0] for prompt in prompts]
    small = engine(num_blocks=24, host_cache_bytes=8 << 20, host_cache_mode="lazy")
    for _ in range(2):
        answers = [small.generate([prompt], GREEDY)[0] for prompt in prompts]
        assert [a.token_ids for a in answers] == [e.token_ids for e in expected]
    assert [a.num_cached for a in answers] == [144] * 6  # of 150: nine blocks
    again = [plain.generate([prompt], GREEDY)[0] for prompt in prompts]
    assert sum(a.num_cached for a in again) < 144 * 3, "without the tier most were lost"


def test_a_follow_up_continues_from_restored_blocks_of_prompt_and_answer(
    engine: Make, prompt_of: Prompt
) -> None:
    llm = engine(host_cache_bytes=8 << 20)
    first = prompt_of(90, seed=1)
    answer = llm.generate([first], GREEDY)[0].token_ids
    llm.core.flush_cache()
    second = (*first, *answer, *prompt_of(20, seed=2))
    (warm,) = llm.generate([second], GREEDY)
    assert warm.num_cached == (90 + 23) // BLOCK * BLOCK  # the last token was never written
    assert warm.token_ids == engine().generate([second], GREEDY)[0].token_ids


def test_aborted_requests_leave_nothing_pinned(engine: Make, prompt_of: Prompt) -> None:
    llm = engine(host_cache_bytes=8 << 20)
    prompt = prompt_of(200, seed=3)
    llm.generate([prompt], GREEDY)
    llm.core.flush_cache()
    llm.core.add("one", prompt, GREEDY)
    llm.core.step()
    llm.core.abort("one")
    assert llm.core.tier is not None
    assert llm.core.tier.num_pinned == 0
    assert llm.core.stats().blocks_used == 0
    assert llm.generate([prompt], GREEDY)[0].num_cached == 192


def test_a_failed_transfer_leaves_nothing_pinned(
    engine: Make, prompt_of: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = engine(host_cache_bytes=8 << 20)
    prompt = prompt_of(100, seed=4)
    llm.generate([prompt], GREEDY)
    llm.core.flush_cache()
    assert llm.core.host is not None
    assert llm.core.tier is not None

    def fail(transfers: object) -> None:
        raise RuntimeError("the host is gone")

    monkeypatch.setattr(llm.core.host, "run", fail)
    llm.core.add("one", prompt, GREEDY)
    with pytest.raises(RuntimeError, match="the host is gone"):
        llm.core.step()
    assert llm.core.tier.num_pinned == 0


def test_the_budget_is_attested_in_whole_blocks(engine: Make, prompt_of: Prompt) -> None:
    llm = engine(host_cache_bytes=1_000_000, host_cache_mode="lazy", kv_cache_dtype="mxfp4")
    block = llm.facts.block_bytes
    assert llm.facts.host_cache_bytes == 1_000_000 // block * block
    assert llm.facts.host_cache_mode == "lazy"
    assert llm.core.stats().host_blocks_total == 1_000_000 // block
    assert engine().facts.host_cache_mode == "none"


def test_a_tier_smaller_than_a_block_is_refused(engine: Make) -> None:
    with pytest.raises(StartupRefused, match=r"\[host-cache\] --host-cache-bytes is 100, but a"):
        engine(host_cache_bytes=100)
