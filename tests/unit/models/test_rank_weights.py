"""What a tensor-parallel rank loads: its part of every tensor, in every format, at its price."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.unit.models.spellings import released

from gnomon.engine.memory import weight_bytes
from gnomon.engine.models.config import ModelConfig, load_config, parse_config
from gnomon.engine.models.convert import quantise_checkpoint
from gnomon.engine.models.loader import load_weights, loaded_formats, stored_tensors
from gnomon.engine.models.matrix import Matrix
from gnomon.engine.models.presets.random_weights import random_weights
from gnomon.engine.models.sharding import rank_config, shard, sharding_problems
from gnomon.engine.models.tensors import tensor_shapes
from gnomon.engine.models.weights import ModelWeights, released_targets
from gnomon.engine.options import ComputeDtype, EngineOptions


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Widths that divide by four into whole groups; four query heads, two KV heads."""
    raw = released()
    raw["text_config"].update(
        intermediate_size=128, shared_intermediate_size=128, dense_intermediate_size=256
    )
    folder = tmp_path_factory.mktemp("divisible")
    (folder / "config.json").write_text(json.dumps(raw))
    weights = random_weights(parse_config(raw), seed=1)
    save_file({"language_model." + n: t for n, t in weights.items()}, folder / "model.safetensors")
    return folder


def options(path: Path, **asked: object) -> EngineOptions:
    return EngineOptions.model_validate({"model": str(path), **asked})


def values(config: ModelConfig, weights: ModelWeights) -> dict[str, torch.Tensor]:
    return {
        name: target.values() if isinstance(target, Matrix) else target
        for name, target in released_targets(config, weights).items()
    }


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("experts", ["bf16", "mxfp8", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("packed", ["in the files", "while loading"])
def test_ranks_hold_the_parts_of_the_whole(
    source: Path, tmp_path: Path, ranks: int, experts: str, packed: str
) -> None:
    config = load_config(source)
    asked = options(source, expert_weights=experts, linear_weights="mxfp8")
    path = source
    if packed == "in the files":
        path = quantise_checkpoint(source, tmp_path / "packed", asked)
        asked = options(path)
    formats = loaded_formats(stored_tensors(path, config), asked)
    assert sharding_problems(config, ranks, formats) == ()
    whole = values(config, load_weights(path, config, asked))
    shapes = tensor_shapes(config)
    for rank in range(ranks):
        held = rank_config(config, rank, ranks)
        weights = load_weights(path, config, asked, rank=rank, ranks=ranks)
        parts = values(held, weights)
        assert parts.keys() == whole.keys()
        for name, part in parts.items():
            expected = whole[name][shard(config, name, shapes[name], rank, ranks)]
            assert torch.equal(part, expected), (rank, name)
        nbytes = sum(target.nbytes for target in released_targets(held, weights).values())
        assert nbytes == weight_bytes(config, ComputeDtype.FLOAT32, formats, ranks)


def test_ranks_with_random_weights_agree_about_what_all_of_them_hold(source: Path) -> None:
    config = load_config(source)
    asked = options(source, load_format="dummy", expert_weights="mxfp4")
    held = rank_config(config, 0, 2)
    ranks = [values(held, load_weights(source, config, asked, rank=r, ranks=2)) for r in (0, 1)]
    shapes = tensor_shapes(config)
    repeated = [name for name, tensor in ranks[0].items() if tensor.shape == shapes[name]]
    assert any("block_sparse_moe.gate" in name for name in repeated)
    assert all(torch.equal(ranks[0][name], ranks[1][name]) for name in repeated)
