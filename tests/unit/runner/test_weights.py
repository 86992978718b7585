"""An engine on packed and on random weights, and what it attests of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gnomon.engine.llm import LLM
from gnomon.engine.models.convert import quantise_checkpoint
from gnomon.engine.options import EngineOptions
from gnomon.engine.scheduler.request import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PACKED = {"expert_weights": "mxfp4", "linear_weights": "mxfp8"}
Make = Callable[..., LLM]


def test_a_packed_checkpoint_serves_what_packing_while_loading_serves(
    engine: Make, tiny_model: Path, tmp_path: Path, prompt_of: Callable[..., tuple[int, ...]]
) -> None:
    asked = EngineOptions.model_validate({"model": str(tiny_model), **PACKED})
    target = quantise_checkpoint(tiny_model, tmp_path / "packed", asked)
    prompts = [prompt_of(n, seed=n) for n in (5, 40, 90)]
    written = engine(model=str(target))
    loaded = engine(**PACKED)
    expected = {"experts": "mxfp4", "index": "float32", "linears": "mxfp8"}
    assert written.facts.weights == loaded.facts.weights == expected
    answers = [[c.token_ids for c in llm.generate(prompts, GREEDY)] for llm in (written, loaded)]
    assert answers[0] == answers[1]


def test_weights_in_another_format_share_no_cached_blocks(engine: Make) -> None:
    plain, packed = engine(), engine(**PACKED)
    roots = [llm.core.scheduler.blocks.index._root for llm in (plain, packed)]
    assert plain.facts.model_fingerprint == packed.facts.model_fingerprint
    assert roots[0] != roots[1]


@pytest.mark.parametrize("experts", [None, "nvfp4"])
def test_random_weights_are_served_from_a_config_alone_and_say_so(
    tiny_model: Path, tmp_path: Path, experts: str | None
) -> None:
    shutil.copyfile(tiny_model / "config.json", tmp_path / "config.json")
    options = EngineOptions.model_validate(
        {
            "model": str(tmp_path),
            "load_format": "dummy",
            "expert_weights": experts,
            "max_model_len": 320,
        }
    )
    llm = LLM(options)
    assert llm.facts.weights["values"] == "random"
    assert llm.facts.weights["experts"] == (experts or "float32")
    (answer,) = llm.generate([tuple(range(20, 60))], GREEDY)
    assert len(answer.token_ids) == 12
