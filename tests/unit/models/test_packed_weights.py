"""Packed weights: bytes by their specification, told apart by dtype and shape, served as such."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.oracle.paged import PagedModel
from tests.unit.models.packed_files import Tensors, Writer, Written, mxfp4, mxfp8, nvfp4
from tests.unit.models.spellings import released

from gnomon.engine.errors import CheckpointError
from gnomon.engine.models.config import load_config, parse_config
from gnomon.engine.models.loader import load_model
from gnomon.engine.models.matrix import Linear, Matrix, empty_matrix
from gnomon.engine.models.minimax_m3 import MiniMaxM3
from gnomon.engine.models.presets.random_weights import random_weights
from gnomon.engine.models.streaming import put
from gnomon.engine.models.weight_formats import WeightGroup, group_of, matrix_bytes
from gnomon.engine.models.weights import MlpWeights
from gnomon.engine.options import CacheFormat, EngineOptions, WeightFormat

PREFIX = "language_model."
CONFIG = parse_config(released())
EXPERT = PREFIX + "model.layers.2.block_sparse_moe.experts.1.w2"

Packs = Mapping[WeightGroup, Writer]

quark = mxfp4
compressed = partial(mxfp4, data_name="weight_packed")
CHECKPOINTS: dict[str, Packs] = {
    "MXFP8 with index projections in bf16": {
        WeightGroup.EXPERTS: mxfp8,
        WeightGroup.LINEARS: mxfp8,
    },
    "MXFP8 everywhere, scales typed e8m0 under another name": dict.fromkeys(
        (WeightGroup.EXPERTS, WeightGroup.LINEARS, WeightGroup.INDEX),
        partial(mxfp8, name="weight_scale", as_e8m0=True),
    ),
    "MXFP4 experts, Quark names": {WeightGroup.EXPERTS: quark},
    "MXFP4 experts, short scale names": {WeightGroup.EXPERTS: partial(quark, name="scale")},
    "MXFP4 experts, compressed-tensors names": {WeightGroup.EXPERTS: compressed},
    "NVFP4 experts and MXFP8 linears, ModelOpt": {
        WeightGroup.EXPERTS: nvfp4,
        WeightGroup.LINEARS: partial(mxfp8, name="weight_scale"),
        WeightGroup.INDEX: partial(mxfp8, name="weight_scale"),
    },
    "NVFP4 experts, compressed-tensors names": {
        WeightGroup.EXPERTS: partial(
            nvfp4, data_name="weight_packed", factor_name="weight_global_scale", divides=True
        )
    },
}


def tensors_of(packs: Packs) -> tuple[Tensors, Tensors]:
    """A packed checkpoint, and the plain fp32 one of the same numbers."""
    rng = np.random.default_rng(0)
    packed: Tensors = {}
    plain: Tensors = {}
    for name, tensor in random_weights(CONFIG, seed=1).items():
        write = packs.get(group_of(name))
        if write is None:
            packed[PREFIX + name] = plain[PREFIX + name] = tensor
            continue
        written = write(rng, *tensor.shape)
        base = PREFIX + name.removesuffix("weight")
        packed |= {base + suffix: part for suffix, part in written.tensors.items()}
        plain[PREFIX + name] = torch.from_numpy(written.values).float()
    return packed, plain


def load(folder: Path, tensors: Tensors, **options: object) -> MiniMaxM3:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(released()))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()},
              folder / "model.safetensors")  # fmt: skip
    asked = EngineOptions.model_validate({"model": str(folder), **options})
    return load_model(folder, load_config(folder, asked), asked)


def logits(model: MiniMaxM3) -> torch.Tensor:
    """Of 96 tokens in blocks of 16, of which a row keeps 4."""
    paged = PagedModel(model, CacheFormat.FP32, num_blocks=8)
    ids = torch.randint(0, 512, (96,), generator=torch.Generator().manual_seed(2))
    sequence = paged.sequence(ids.tolist())
    paged.prefill(sequence, chunk=40)
    return sequence.all_logits()


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_packed_weights_give_the_logits_of_the_numbers_they_mean(tmp_path: Path, kind: str) -> None:
    packed, plain = tensors_of(CHECKPOINTS[kind])
    model = load(tmp_path / "packed", packed)
    ours, theirs = logits(model), logits(load(tmp_path / "plain", plain))
    assert bool(torch.isfinite(ours).all())
    assert ours.std() > 0.1, "logits that all agree would prove nothing"
    assert (ours - theirs).abs().max() < 1e-4


def test_experts_stay_packed_in_memory(tmp_path: Path) -> None:
    packed, _ = tensors_of(CHECKPOINTS["MXFP4 experts, Quark names"])
    moe = load(tmp_path, packed).weights.layers[2].mlp
    assert not isinstance(moe, MlpWeights)
    assert moe.gate_up.format is moe.down.format is WeightFormat.MXFP4
    assert moe.gate_up.nbytes == 4 * matrix_bytes(WeightFormat.MXFP4, 96, 64, 4)
    assert torch.equal(moe.down.data[1], packed[EXPERT + ".weight"])
    assert moe.shared.down.parts[0].format is WeightFormat.PLAIN


def test_projections_of_two_formats_are_one_layer_of_two_parts(tmp_path: Path) -> None:
    packed, _ = tensors_of(CHECKPOINTS["MXFP8 with index projections in bf16"])
    dense, sparse = (load(tmp_path, packed).weights.layers[i].attention.qkv for i in (0, 1))
    assert [part.format.value for part in dense.parts] == ["mxfp8"]
    assert [part.format.value for part in sparse.parts] == ["mxfp8", "bf16"]
    assert sparse.num_rows == 256 + 3 * 32


def written(writer: Writer, rows: int, width: int, seed: int) -> tuple[Matrix, Written]:
    """A matrix filled as the loader fills it."""
    given_ = writer(np.random.default_rng(seed), rows, width)
    fmt = {"mxfp8": WeightFormat.MXFP8, "mxfp4": WeightFormat.MXFP4, "nvfp4": WeightFormat.NVFP4}
    kind = fmt[writer.func.__name__ if isinstance(writer, partial) else writer.__name__]
    matrix = empty_matrix(kind, (rows, width), torch.float32)
    for suffix, tensor in given_.tensors.items():
        if suffix != "input_scale":
            roles = {"weight": "data", "weight_scale_2": "multiplier"}
            put(matrix, roles.get(suffix, "scale"), tensor)
    return matrix, given_


EXTREMES = st.sampled_from([(0, 0), (0, 2), (1, 1), (100, 140), (250, 254), (253, 254), (254, 254)])


@settings(max_examples=60, deadline=None)
@given(
    writer=st.sampled_from([mxfp8, mxfp4]),
    rows=st.integers(1, 5),
    half_width=st.integers(1, 70),
    odd=st.booleans(),
    scales=EXTREMES,
    seed=st.integers(0, 2**16),
)
def test_values_are_exact_at_every_size_and_scale(
    writer: Callable[..., Written],
    rows: int,
    half_width: int,
    odd: bool,
    scales: tuple[int, int],
    seed: int,
) -> None:
    width = 2 * half_width - int(odd and writer is mxfp8)
    bounded = partial(writer, low=scales[0], high=scales[1])
    matrix, given_ = written(bounded, rows, width, seed)
    assert np.array_equal(matrix.values().numpy().astype(np.float64), given_.values)
    assert bool(torch.isfinite(matrix.dense(torch.bfloat16)).all())


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 5), half_width=st.integers(1, 40), seed=st.integers(0, 2**16))
def test_nvfp4_values_are_within_two_roundings(rows: int, half_width: int, seed: int) -> None:
    matrix, given_ = written(nvfp4, rows, 2 * half_width, seed)
    assert np.allclose(matrix.values().numpy(), given_.values, rtol=2.0**-23, atol=0)


@settings(max_examples=25, deadline=None)
@given(
    writer=st.sampled_from([mxfp8, mxfp4, nvfp4]),
    ranks=st.sampled_from([1, 2, 4, 8]),
    groups=st.integers(1, 3),
    seed=st.integers(0, 2**16),
)
def test_shards_of_a_matrix_make_up_the_whole(
    writer: Writer, ranks: int, groups: int, seed: int
) -> None:
    width = 32 * groups * ranks
    matrix, _ = written(writer, 2 * ranks, width, seed)
    whole = matrix.values()
    rows = [matrix.rows(2 * r, 2 * r + 2).values() for r in range(ranks)]
    share = width // ranks
    columns = [matrix.columns(share * r, share * (r + 1)).values() for r in range(ranks)]
    assert torch.equal(torch.cat(rows), whole)
    assert torch.equal(torch.cat(columns, dim=1), whole)


def test_a_shard_may_not_cut_a_group() -> None:
    matrix, _ = written(mxfp4, 2, 64, 0)
    with pytest.raises(ValueError, match="cut a mxfp4 group of 32"):
        matrix.columns(0, 48)


def test_a_layer_multiplies_by_the_values() -> None:
    matrix, given_ = written(mxfp4, 24, 80, 3)
    x = torch.randn(7, 80, generator=torch.Generator().manual_seed(1))
    expected = x.double().numpy() @ given_.values.T
    assert np.allclose(Linear((matrix,))(x).numpy(), expected, rtol=1e-4, atol=1e-4)


def bf16(tensors: Tensors) -> None:
    del tensors[EXPERT + ".weight_scale"]
    tensors[EXPERT + ".weight"] = torch.zeros(64, 48, dtype=torch.bfloat16)


def change(suffix: str, tensor: torch.Tensor) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({f"{EXPERT}.{suffix}": tensor})


FP8 = torch.float8_e4m3fn
QUARK, MODELOPT = "MXFP4 experts, Quark names", "NVFP4 experts and MXFP8 linears, ModelOpt"
FAULTS: dict[str, tuple[str, Callable[[Tensors], object], tuple[str, ...]]] = {
    "a scale is missing": (
        QUARK,
        lambda t: t.pop(EXPERT + ".weight_scale"),
        ("experts.1.w2.weight is U8 without a scale",),
    ),
    "block fp8 under the name of MXFP8": (
        QUARK,
        lambda t: (
            t.pop(EXPERT + ".weight_scale"),
            change("weight", torch.zeros(64, 48, dtype=FP8))(t),
            change("weight_scale_inv", torch.ones(1, 1))(t),
        ),
        ("w2.weight is F8_E4M3 [64, 48] with a scale of F32 [1, 1]",),
    ),
    "one expert of a layer is not packed": (QUARK, bf16, ("w2 of one layer are bf16, mxfp4",)),
    "the scale has the groups of another format": (
        QUARK,
        change("weight_scale", torch.ones(64, 3, dtype=torch.uint8)),
        ("w2.weight_scale is [64, 3], not [64, 2] as mxfp4 has",),
    ),
    "data of the wrong shape": (
        QUARK,
        change("weight", torch.zeros(64, 48, dtype=torch.uint8)),
        ("1 tensor is of the wrong shape", "[64, 48], not [64, 48] in mxfp4"),
    ),
    "the factor of NVFP4 is missing": (
        MODELOPT,
        lambda t: t.pop(EXPERT + ".weight_scale_2"),
        ("w2.weight is nvfp4 with no weight_scale_2; it must have 1 factor",),
    ),
    "a plain tensor with a scale": (
        QUARK,
        change("weight", torch.zeros(64, 48)),
        ("w2.weight is F32, yet it has", "w2.weight_scale"),
    ),
    "a scale that belongs to nothing": (
        QUARK,
        lambda t: t.update({"language_model.model.norm.weight_scale": torch.ones(1)}),
        ("1 tensor is unexpected: language_model.model.norm.weight_scale",),
    ),
    "two tensors for one place": (
        QUARK,
        change("scale", torch.ones(64, 2, dtype=torch.uint8)),
        ("there twice", "w2.scale"),
    ),
    "a scale that is NaN": (
        QUARK,
        change("weight_scale", torch.full((64, 2), 255, dtype=torch.uint8)),
        ("w2.weight_scale of model.safetensors cannot be used: it has a scale that is NaN",),
    ),
    "a factor of zero": (
        MODELOPT,
        change("weight_scale_2", torch.tensor(0.0)),
        ("its factor is 0.0; it must be positive and finite",),
    ),
    "many at once": (
        QUARK,
        lambda t: (
            t.pop(EXPERT + ".weight_scale"),
            t.pop(PREFIX + "lm_head.weight"),
            t.update(stray=torch.ones(1)),
        ),
        ("without a scale", "missing: lm_head.weight", "unexpected: stray"),
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_packed_tensor_at_fault_is_named(tmp_path: Path, case: str) -> None:
    kind, fault, words = FAULTS[case]
    packed, _ = tensors_of(CHECKPOINTS[kind])
    fault(packed)
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path, packed)
    for word in words:
        assert word in str(caught.value)


def test_cache_scales_of_a_checkpoint_are_left_out_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    packed, _ = tensors_of(CHECKPOINTS[MODELOPT])
    layer = PREFIX + "model.layers.1.self_attn."
    packed |= {layer + "k_proj.k_scale": torch.ones(1), layer + "attn.v_scale": torch.ones(1)}
    caplog.set_level("INFO")
    load(tmp_path, packed)
    experts = 3 * 4 * 3  # layers, experts and matrices with an input_scale each
    assert f"leaving out {experts + 2} scales" in caplog.text
