"""Weights on a GPU: the same bytes as on a CPU, priced as allocated, and a real lack of memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.unit.models.spellings import released

from gnomon.engine.device import gpu_machine
from gnomon.engine.errors import OutOfMemory
from gnomon.engine.memory import plan_memory, weight_bytes
from gnomon.engine.models.config import load_config, parse_config
from gnomon.engine.models.loader import asked_formats, load_model
from gnomon.engine.models.matrix import Matrix
from gnomon.engine.models.minimax_m3 import MiniMaxM3
from gnomon.engine.models.presets.random_weights import random_weights
from gnomon.engine.models.presets.released import minimax_m31
from gnomon.engine.models.weights import released_targets
from gnomon.engine.nvml import live_gpus
from gnomon.engine.options import ComputeDtype, EngineOptions, WeightFormat
from gnomon.engine.out_of_memory import memory_told

pytestmark = pytest.mark.gpu


def flat(target: torch.Tensor | Matrix) -> list[torch.Tensor]:
    tensors = target.tensors if isinstance(target, Matrix) else (target,)
    return [tensor.cpu().contiguous().view(torch.uint8) for tensor in tensors]


@pytest.mark.parametrize("experts", ["bf16", "mxfp8", "mxfp4", "nvfp4"])
def test_packing_on_a_gpu_gives_the_bytes_of_a_cpu(tmp_path: Path, experts: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(released()))
    weights = random_weights(parse_config(released()), seed=1)
    file = tmp_path / "model.safetensors"
    save_file({"language_model." + name: tensor for name, tensor in weights.items()}, file)
    options = EngineOptions.model_validate(
        {
            "model": "m",
            "dtype": "bfloat16",
            "expert_weights": experts,
            "linear_weights": "mxfp8",
        }
    )
    config = load_config(tmp_path)

    def targets(model: MiniMaxM3) -> dict[str, list[torch.Tensor]]:
        found = released_targets(config, model.weights)
        return {name: flat(target) for name, target in found.items()}

    on_gpu = targets(load_model(tmp_path, config, options, "cuda"))
    on_cpu = targets(load_model(tmp_path, config, options, "cpu"))
    for name, tensors in on_cpu.items():
        pairs = zip(tensors, on_gpu[name], strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), name


@pytest.mark.parametrize("experts", ["bf16", "mxfp8", "mxfp4", "nvfp4"])
def test_two_layers_at_full_width_take_what_is_planned(tmp_path: Path, experts: str) -> None:
    raw = minimax_m31()
    text = raw["text_config"]
    text.update(num_hidden_layers=2, moe_layer_freq=[0, 1], vocab_size=2048)
    text.update(bos_token_id=0, eos_token_id=1)
    text["sparse_attention_config"].update(
        sparse_attention_freq=[1, 1], sparse_disable_index_value=[1, 1]
    )
    config = parse_config(raw)
    options = EngineOptions.model_validate(
        {
            "model": "m",
            "load_format": "dummy",
            "expert_weights": experts,
            "linear_weights": "mxfp8",
        }
    )
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    model = load_model(tmp_path, config, options, "cuda")
    held = torch.cuda.memory_allocated() - before

    def formats(name: str) -> WeightFormat:
        return asked_formats(options)(name) or WeightFormat.PLAIN

    planned = weight_bytes(config, ComputeDtype.BFLOAT16, formats)
    assert planned <= held < planned * 1.001  # the allocator rounds up
    moe = model.weights.layers[1].mlp
    values = moe.gate_up[5].dense(torch.bfloat16)  # type: ignore[union-attr]
    assert bool(torch.isfinite(values).all())
    assert 0.3 < float(values.float().std() * 6144**0.5) < 3.0


def test_a_gpu_that_runs_out_is_told_with_the_plans_numbers() -> None:
    machine = gpu_machine(live_gpus())
    config = parse_config(released())
    plan = plan_memory(config, EngineOptions(model="m"), machine)
    with (
        pytest.raises(OutOfMemory, match=r"caches [\d,]+ .*\(CUDA out of memory"),
        memory_told("allocating the caches", plan, machine),
    ):
        torch.empty(2 * machine.memory_bytes, dtype=torch.uint8, device="cuda")
