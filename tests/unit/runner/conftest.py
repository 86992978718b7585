"""A model so small that a test can serve it a hundred times, and an engine around it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gnomon.engine.llm import LLM
from gnomon.engine.models.config import parse_config
from gnomon.engine.models.presets.nano import nano_config
from gnomon.engine.models.presets.random_weights import random_weights
from gnomon.engine.options import EngineOptions

BLOCK = 16
VOCAB = 300
EOS = 1


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    """The model is so tiny that threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers, the first dense; blocks of 16 tokens, of which a row keeps 3."""
    raw = nano_config(VOCAB, {"bos": 0, "eos": EOS, "image": 2, "video": 3})
    text = raw["text_config"]
    text.update(
        hidden_size=64, num_hidden_layers=3, head_dim=32, rotary_dim=16, intermediate_size=32,
        dense_intermediate_size=96, shared_intermediate_size=32, num_local_experts=4,
        max_position_embeddings=512, moe_layer_freq=[0, 1, 1],
    )  # fmt: skip
    text["sparse_attention_config"].update(
        sparse_block_size=BLOCK, sparse_topk_blocks=3, sparse_index_dim=32,
        sparse_attention_freq=[0, 1, 1], sparse_disable_index_value=[0, 1, 1],
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(raw))
    weights = random_weights(parse_config(raw), seed=0)
    save_file({"language_model." + k: v for k, v in weights.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def engine(tiny_model: Path) -> Callable[..., LLM]:
    """Make an engine; keyword arguments are engine options. The cache is fp32 unless asked."""

    def make(**options: Any) -> LLM:
        defaults = {"model": str(tiny_model), "kv_cache_dtype": "fp32"}
        defaults |= {"max_model_len": 320, "num_blocks": 200}
        return LLM(EngineOptions.model_validate({**defaults, **options}))

    return make


@pytest.fixture(scope="session")
def prompt_of() -> Callable[..., tuple[int, ...]]:
    """Token ids of a given length, the same for the same seed; a longer one extends a shorter."""

    def make(length: int, seed: int = 0) -> tuple[int, ...]:
        stream = random.Random(seed)
        return tuple(stream.randrange(10, VOCAB) for _ in range(length))

    return make
