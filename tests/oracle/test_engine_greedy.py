"""The whole engine, scheduler included, gives the greedy tokens of the transformers model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.oracle.peer import peer_model, random_ids, run_peer, save_text_only, tiny_config

from gnomon.engine.llm import LLM
from gnomon.engine.options import EngineOptions
from gnomon.engine.scheduler.request import SamplingParams

NEW_TOKENS = 10
COMMON = 259  # shared by all prompts, and not a multiple of the block size


@dataclass(frozen=True)
class Expected:
    folder: Path
    prompts: list[list[int]]
    tokens: list[tuple[int, ...]]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    peer = peer_model(tiny_config())
    vocab = peer.config.vocab_size
    common = random_ids(COMMON, vocab, seed=100)
    prompts = [common + random_ids(n, vocab, seed=n) for n in (250, 1, 140)]
    tokens = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(NEW_TOKENS):
            ids.append(int(run_peer(peer, ids).logits[-1].argmax()))
        tokens.append(tuple(ids[len(prompt) :]))
    folder = save_text_only(peer, tmp_path_factory.mktemp("greedy"))
    return Expected(folder, prompts, tokens)


ENGINES: dict[str, dict[str, Any]] = {
    "whole prompts": {},
    "chunks of 50 tokens beside decode": {"max_num_batched_tokens": 50},
    "no prefix cache": {"enable_prefix_caching": False},
    "too few blocks for all three": {
        "num_blocks": 49,  # the first two prompts exactly, and no room to grow
        "enable_prefix_caching": False,
        "max_num_batched_tokens": 300,
    },
    "too few blocks, with prefix cache": {"num_blocks": 42, "max_num_batched_tokens": 100},
}


@pytest.mark.parametrize("case", ENGINES)
def test_greedy_tokens_equal_those_of_one_full_forward_each(expected: Expected, case: str) -> None:
    options = EngineOptions(
        model=str(expected.folder),
        kv_cache_dtype="fp32",  # type: ignore[arg-type]  # parsed by the options
        max_model_len=528,
        **ENGINES[case],
    )
    engine = LLM(options)
    greedy = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    together = engine.generate(expected.prompts, greedy)
    assert [c.token_ids for c in together] == expected.tokens
    again = engine.generate(expected.prompts[:1], greedy)
    assert again[0].token_ids == expected.tokens[0]
    assert (engine.core.stats().preemptions_total > 0) == ("few" in case)
    if options.enable_prefix_caching and "few" not in case:
        assert again[0].num_cached > 0
