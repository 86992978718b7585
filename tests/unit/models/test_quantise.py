"""Quantising bf16 weights: the rule, the checkpoint that is written, and random weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from tests.unit.models.packed_files import E2M1, E4M3, E4M3_FINITE
from tests.unit.models.spellings import released
from tests.unit.models.test_packed_weights import logits
from typer.testing import CliRunner

from gnomon.cli.main import build_app
from gnomon.engine.errors import CheckpointError
from gnomon.engine.models.config import load_config, parse_config
from gnomon.engine.models.convert import quantise_checkpoint
from gnomon.engine.models.loader import load_model
from gnomon.engine.models.matrix import Matrix
from gnomon.engine.models.minimax_m3 import MiniMaxM3
from gnomon.engine.models.presets.random_weights import random_weights
from gnomon.engine.models.quantise import quantise
from gnomon.engine.models.weights import released_targets
from gnomon.engine.options import EngineOptions, WeightFormat

GRIDS = {WeightFormat.MXFP8: np.unique(E4M3[E4M3_FINITE]), WeightFormat.MXFP4: np.unique(E2M1)}
PACKED = [fmt for fmt in WeightFormat if fmt is not WeightFormat.PLAIN]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(released()))
    (folder / "tokenizer.json").write_text("{}")
    weights = random_weights(parse_config(released()), seed=1)
    save_file({"language_model." + n: t for n, t in weights.items()}, folder / "model.safetensors")
    return folder


def options(path: Path, **asked: object) -> EngineOptions:
    return EngineOptions.model_validate({"model": str(path), **asked})


def load(path: Path, **asked: object) -> MiniMaxM3:
    return load_model(path, load_config(path), options(path, **asked))


def content(model: MiniMaxM3) -> dict[str, list[torch.Tensor]]:
    return {
        name: [
            t.contiguous().view(torch.uint8) for t in (w.tensors if isinstance(w, Matrix) else (w,))
        ]
        for name, w in released_targets(model.config, model.weights).items()
    }


@settings(max_examples=60, deadline=None)
@given(
    fmt=st.sampled_from([WeightFormat.MXFP8, WeightFormat.MXFP4]),
    rows=st.integers(1, 4),
    half_width=st.integers(1, 70),
    exponent=st.integers(-110, 110),
    seed=st.integers(0, 2**16),
)
def test_every_element_is_the_nearest_number_of_its_group(
    fmt: WeightFormat, rows: int, half_width: int, exponent: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((rows, 2 * half_width), generator=generator) * 2.0**exponent
    x[torch.rand(x.shape, generator=generator) < 0.1] = 0.0
    matrix = quantise(x, fmt)
    values = matrix.values().double().numpy()
    assert matrix.scale is not None
    scales = 2.0 ** (np.repeat(matrix.scale.numpy(), 32, axis=1)[:, : x.shape[1]] - 127.0)
    scaled = x.double().numpy() / scales
    grid = GRIDS[fmt]
    assert np.abs(scaled).max() <= grid.max(), "the scale must clip nothing"
    nearest = np.abs(scaled[..., None] - grid).min(-1)
    assert np.array_equal(np.abs(scaled - values / scales), nearest)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 4), half_width=st.integers(1, 70), seed=st.integers(0, 2**16))
def test_nvfp4_is_within_half_a_step_of_its_groups_largest(
    rows: int, half_width: int, seed: int
) -> None:
    x = torch.randn((rows, 2 * half_width), generator=torch.Generator().manual_seed(seed))
    error = (quantise(x, WeightFormat.NVFP4).values() - x).abs()
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % 16)).unflatten(1, (-1, 16))
    amax = padded.abs().amax(-1).repeat_interleave(16, dim=1)[:, : x.shape[1]]
    # A step of 2 at 6, of which half, and what e4m3 rounds off the scale (1/16, or its smallest).
    assert bool((error <= amax / 6 * 1.07 + 6 * amax / 16 / 6 + 2.0**-8 * x.abs().max()).all())


@pytest.mark.parametrize("fmt", PACKED)
def test_zeros_stay_zeros(fmt: WeightFormat) -> None:
    assert bool((quantise(torch.zeros(3, 64), fmt).values() == 0).all())


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_weights_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="NaN or Inf"):
        quantise(torch.tensor([[1.0, bad]]), WeightFormat.MXFP4)


@pytest.mark.parametrize("linears", ["mxfp8", "bf16"])
@pytest.mark.parametrize("experts", ["mxfp8", "mxfp4", "nvfp4"])
def test_a_written_checkpoint_loads_as_quantising_while_loading_does(
    source: Path, tmp_path: Path, experts: str, linears: str
) -> None:
    asked = {"expert_weights": experts, "linear_weights": linears}
    target = quantise_checkpoint(
        source, tmp_path / "target", options(source, **asked), shard_bytes=60_000
    )
    assert len(list(target.glob("*.safetensors"))) > 3
    assert (target / "tokenizer.json").is_file()
    ours, theirs = content(load(target)), content(load(source, **asked))
    assert ours.keys() == theirs.keys()
    for name, tensors in ours.items():
        pairs = zip(tensors, theirs[name], strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), name


def test_quantising_changes_logits_a_little(source: Path) -> None:
    exact = logits(load(source))
    packed = logits(load(source, linear_weights="mxfp8"))
    error = (packed - exact).norm() / exact.norm()
    assert 0.001 < error < 0.3


def test_the_command_writes_names_that_public_checkpoints_use(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    arguments = ["model", "quantize", str(source), str(target), "--experts", "mxfp4"]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 0, result.output
    with safe_open(target / "model-00001.safetensors", framework="pt") as file:
        layer = "language_model.model.layers.1."
        expert = layer + "block_sparse_moe.experts.0.w1.weight"
        assert file.get_slice(expert).get_dtype() == "U8"
        assert file.get_slice(expert + "_scale").get_shape() == [48, 2]
        q = layer + "self_attn.q_proj.weight"
        assert file.get_slice(q).get_dtype() == "F8_E4M3"
        assert file.get_slice(q + "_scale_inv").get_dtype() == "U8"
        assert file.get_slice(layer + "self_attn.index_q_proj.weight").get_dtype() == "BF16"
        assert file.get_slice(layer + "block_sparse_moe.gate.weight").get_dtype() == "F32"
    again = CliRunner().invoke(build_app(), arguments)
    assert again.exit_code == 2
    assert "not an empty directory" in again.output


@pytest.mark.parametrize(
    ("experts", "linears", "told"),
    [
        ("bf16", "bf16", "nothing to quantise"),
        ("int4", "mxfp8", "--expert-weights"),
    ],
)
def test_what_cannot_be_quantised_is_refused(
    source: Path, tmp_path: Path, experts: str, linears: str, told: str
) -> None:
    target = str(tmp_path / "target")
    arguments = ["model", "quantize", str(source), target, "--experts", experts]
    result = CliRunner().invoke(build_app(), [*arguments, "--linears", linears])
    assert result.exit_code == 2
    assert told in result.output
    assert not (tmp_path / "target").exists()


def test_packed_weights_are_not_packed_again(source: Path, tmp_path: Path) -> None:
    asked = options(source, expert_weights="mxfp4")
    target = quantise_checkpoint(source, tmp_path / "target", asked)
    load(target, expert_weights="mxfp4")
    with pytest.raises(CheckpointError, match=r"w1.weight is mxfp4 and \d+ more: only bf16"):
        load(target, expert_weights="nvfp4")


@pytest.mark.parametrize("experts", [None, "mxfp8", "mxfp4", "nvfp4"])
def test_random_weights_need_no_file_and_give_finite_varied_logits(
    tmp_path: Path, experts: str | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(released()))
    asked = {"load_format": "dummy", "expert_weights": experts, "linear_weights": "mxfp8"}
    first, again = (load(tmp_path, **asked) for _ in range(2))
    ours = logits(first)
    assert bool(torch.isfinite(ours).all())
    assert ours.std() > 0.05
    assert torch.equal(ours, logits(again))
    assert not torch.equal(ours, logits(load(tmp_path, seed=1, **asked)))
