"""Loading: every fault of a checkpoint is one error that names it."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.unit.models.spellings import released

from gnomon.engine.errors import CheckpointError
from gnomon.engine.memory import plan_memory
from gnomon.engine.models import streaming
from gnomon.engine.models.config import ModelConfig, load_config, parse_config
from gnomon.engine.models.loader import fingerprint, load_model, resolve_model
from gnomon.engine.models.matrix import Matrix
from gnomon.engine.models.minimax_m3 import MiniMaxM3
from gnomon.engine.models.presets.random_weights import random_weights
from gnomon.engine.models.progress import progress
from gnomon.engine.models.tensors import tensor_shapes
from gnomon.engine.models.weights import MlpWeights, empty_weights, released_targets
from gnomon.engine.options import EngineOptions

Tensors = dict[str, torch.Tensor]
LAYER = "language_model.model.layers.1."


@pytest.fixture
def tensors() -> Tensors:
    weights = random_weights(parse_config(released()), seed=1)
    return {"language_model." + name: tensor for name, tensor in weights.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(released()))
    return tmp_path


def load(folder: Path, **options: object) -> MiniMaxM3:
    asked = EngineOptions.model_validate({"model": str(folder), **options})
    return load_model(folder, load_config(folder, asked), asked)


def save(folder: Path, tensors: Tensors, shards: int = 1) -> None:
    """One file, or several with an index."""
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    names = sorted(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        save_file({n: tensors[n] for n in names[i::shards]}, folder / file)
        weight_map |= dict.fromkeys(names[i::shards], file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_every_tensor_lands_where_its_name_says(folder: Path, tensors: Tensors) -> None:
    save(folder, tensors)
    model = load(folder)
    targets = released_targets(model.config, model.weights)
    assert set(targets) == set(tensor_shapes(model.config))
    for name, target in targets.items():
        target = target.data if isinstance(target, Matrix) else target
        stored = tensors["language_model." + name].float()
        assert torch.equal(target, stored), name
    moe = model.weights.layers[1].mlp
    assert not isinstance(moe, MlpWeights)
    w3 = tensors[LAYER + "block_sparse_moe.experts.2.w3.weight"].float()
    assert torch.equal(moe.gate_up.data[2, 48:], w3)  # [gate rows; up rows]


def test_shards_and_a_single_file_load_alike(folder: Path, tensors: Tensors) -> None:
    save(folder, tensors, shards=3)
    sharded = load(folder).weights
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    save(folder, tensors)
    whole = load(folder).weights
    assert torch.equal(sharded.embed, whole.embed)
    fused = [weights.layers[3].attention.qkv.parts for weights in (sharded, whole)]
    assert torch.equal(fused[0][0].data, fused[1][0].data)


@pytest.mark.parametrize("experts", [None, "mxfp4"])
def test_one_stored_tensor_is_held_at_a_time(
    folder: Path, tensors: Tensors, experts: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder, tensors, shards=3)
    alive: list[weakref.ref[torch.Tensor]] = []
    read = streaming.read_tensors

    def watched(file: Path, names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for name in names:
            assert all(ref() is None for ref in alive), f"another tensor was held before {name}"
            ((_, tensor),) = read(file, [name])
            alive.append(weakref.ref(tensor))
            yield name, tensor
            del tensor

    monkeypatch.setattr(streaming, "read_tensors", watched)
    load(folder, expert_weights=experts)
    assert len(alive) == len(tensors)


@pytest.mark.parametrize("prefix", ["model.language_model.", "plain"])
def test_other_prefixes_of_the_released_layout_are_read(
    folder: Path, tensors: Tensors, prefix: str
) -> None:
    renamed = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("language_model.")
        if prefix != "plain" and name.startswith("model."):
            name = prefix + name.removeprefix("model.")
        renamed[name] = tensor
    save(folder, renamed)
    load(folder)


def test_vision_and_draft_tensors_are_skipped_and_the_log_says_text_only(
    folder: Path, tensors: Tensors, caplog: pytest.LogCaptureFixture
) -> None:
    extra = (
        "vision_tower.vision_model.embeddings.patch_embedding.weight",
        "multi_modal_projector.linear_1.weight",
        "patch_merge_mlp.linear_1.bias",
        "language_model.model.mtp.layers.0.enorm.weight",
    )
    save(folder, tensors | {name: torch.zeros(2) for name in extra})
    caplog.set_level("INFO")
    load(folder)
    assert "text only: skipping 4 tensors" in caplog.text


FAULTS: dict[str, tuple[Callable[[Tensors], object], tuple[str, ...]]] = {
    "missing": (
        lambda t: t.pop(LAYER + "self_attn.index_k_norm.weight"),
        ("1 tensor is missing: model.layers.1.self_attn.index_k_norm.weight",),
    ),
    "unexpected": (
        lambda t: t.update({LAYER + "self_attn.q_proj.bias": torch.zeros(128)}),
        (f"1 tensor is unexpected: {LAYER}self_attn.q_proj.bias",),
    ),
    "misshapen": (
        lambda t: t.update({LAYER + "self_attn.k_proj.weight": torch.zeros(64, 32)}),
        (f"{LAYER}self_attn.k_proj.weight gives", "[64, 32], not [64, 64]"),
    ),
    "an expert too many": (
        lambda t: t.update({LAYER + "block_sparse_moe.experts.4.w1.weight": torch.zeros(48, 64)}),
        ("experts.4.w1.weight", "unexpected"),
    ),
    "quantised": (
        lambda t: t.update(
            {LAYER + "self_attn.v_proj.weight": torch.zeros(64, 64, dtype=torch.uint8)}
        ),
        (f"{LAYER}self_attn.v_proj.weight is U8",),
    ),
    "several kinds at once": (
        lambda t: (
            t.pop("language_model.lm_head.weight"),
            t.update({"language_model.model.norm.weight": torch.zeros(7), "stray": torch.ones(1)}),
        ),
        ("missing: lm_head.weight", "unexpected: stray", "[7], not [64]"),
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_tensor_at_fault_is_named(folder: Path, tensors: Tensors, case: str) -> None:
    fault, words = FAULTS[case]
    fault(tensors)
    save(folder, tensors)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    for word in words:
        assert word in str(caught.value)


def test_a_long_list_of_faults_is_cut(folder: Path, tensors: Tensors) -> None:
    save(folder, {n: t for n, t in tensors.items() if "layers.2." not in n})
    with pytest.raises(CheckpointError, match=r"29 tensors are missing: .* and 21 more") as caught:
        load(folder)
    assert len(str(caught.value)) < 1000


def test_an_index_that_names_a_file_that_is_not_there(folder: Path, tensors: Tensors) -> None:
    save(folder, tensors, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 3 files.*00002-of-00003.*incomplete"):
        load(folder)


def test_an_index_may_not_leave_the_directory(folder: Path, tensors: Tensors) -> None:
    save(folder, tensors)
    index = {"weight_map": {"a": "../other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="outside its directory"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: m.pop("language_model.model.norm.weight"), r"index: absent, files: model-0000"),
        (lambda m: m.update(ghost="model-00001-of-00003.safetensors"), r"ghost .*files: absent"),
        (
            lambda m: m.update(
                {"language_model.model.norm.weight": "model-00001-of-00003.safetensors"}
            ),
            r"norm.weight \(index: model-00001\S+, files: model-0000[23]",
        ),
    ],
    ids=["left-out", "nowhere", "elsewhere"],
)
def test_an_index_that_contradicts_its_files(
    folder: Path, tensors: Tensors, change: Callable[[dict[str, str]], object], told: str
) -> None:
    save(folder, tensors, shards=3)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=told):
        load(folder)


def test_an_index_without_a_map(folder: Path, tensors: Tensors) -> None:
    save(folder, tensors)
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no weight_map"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 4, 200, -1])
def test_a_truncated_file_is_named(folder: Path, tensors: Tensors, keep: int) -> None:
    save(folder, tensors)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*truncated or damaged"):
        load(folder)


def test_a_tensor_in_two_files(folder: Path, tensors: Tensors) -> None:
    save(folder, tensors)
    name = "language_model.lm_head.weight"
    save_file({name: tensors[name]}, folder / "second.safetensors")
    with pytest.raises(CheckpointError, match=r"lm_head.weight is in both"):
        load(folder)


def test_a_directory_without_weights(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors file"):
        load(folder)


def test_a_reusing_layer_leaves_its_index_tensors_in_the_file(
    folder: Path, tensors: Tensors
) -> None:
    save(folder, tensors)
    model = load(folder, use_index_cache=True, index_topk_freq=3)
    widths = [w.attention.qkv.num_rows for w in model.weights.layers]
    assert widths == [256, 256 + 3 * 32, 256, 256]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("reuse", [False, True])
def test_the_memory_plan_prices_the_weights_that_are_loaded(
    folder: Path, dtype: str, reuse: bool
) -> None:
    options = EngineOptions.model_validate(
        {"model": "m", "dtype": dtype, "use_index_cache": reuse, "index_topk_freq": 1 + 2 * reuse}
    )
    config: ModelConfig = load_config(folder, options)
    compute = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    weights = empty_weights(config, compute, torch.device("meta"))
    total = sum(target.nbytes for target in released_targets(config, weights).values())
    assert plan_memory(config, options).weight_bytes == total


def test_a_name_that_is_neither_preset_nor_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"does not exist and is not a preset.*nano"):
        resolve_model("nanno")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="is a file, not a directory"):
        resolve_model(str(tmp_path / "file"))
    assert resolve_model(str(tmp_path)) == tmp_path


def test_concurrent_callers_of_a_preset_get_one_complete_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    paths: list[Path] = []
    callers = [
        threading.Thread(target=lambda: paths.append(resolve_model("nano"))) for _ in range(3)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(paths) == 3
    assert len(set(paths)) == 1
    assert [p.name for p in (tmp_path / "gnomon" / "models").iterdir()] == [paths[0].name]
    assert load_file(paths[0] / "model.safetensors")
    assert (paths[0] / "chat_template.jinja").is_file()


def test_the_fingerprint_covers_what_decides_the_output(folder: Path, tensors: Tensors) -> None:
    save(folder, tensors)
    seen = {fingerprint(folder)}
    (folder / "README.md").write_text("words")
    seen.add(fingerprint(folder))
    assert len(seen) == 1
    for name in ("chat_template.jinja", "tokenizer.json", "generation_config.json"):
        (folder / name).write_text("{}")
        seen.add(fingerprint(folder))
    tensors["language_model.model.norm.weight"][0] += 1
    save(folder, tensors)
    seen.add(fingerprint(folder))
    assert len(seen) == 5
    assert all(len(digest) == 64 for digest in seen)


def test_a_log_tells_every_tenth_of_a_load(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with progress("loading weights", 20 * 10**6) as advance:
        for _ in range(40):
            advance(500_000)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"loading weights: {mb} of 20 MB" for mb in range(2, 21, 2)]


def test_a_load_advances_by_all_that_is_read(
    folder: Path, tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder, tensors)
    told: list[int] = []

    @contextmanager
    def watched(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
        told.append(-total_bytes)
        yield told.append

    monkeypatch.setattr(streaming, "progress", watched)
    load(folder)
    assert told[0] < 0
    assert sum(told) == 0
