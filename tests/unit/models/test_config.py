"""config.json: two spellings, one model; contradictions and the unsupported are refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.models.spellings import released, transformers

from gnomon.engine.errors import CheckpointError, ModelConfigError
from gnomon.engine.models.config import load_config, parse_config
from gnomon.engine.models.reuse import SelectionReuse
from gnomon.engine.options import EngineOptions

KeyPath = tuple[str, ...]


def paths_of(raw: dict[str, Any], prefix: KeyPath = ()) -> list[KeyPath]:
    """Every key of a config, nested ones included."""
    found = []
    for key, value in raw.items():
        found.append((*prefix, key))
        if isinstance(value, dict):
            found += paths_of(value, (*prefix, key))
    return found


Change = Callable[[dict[str, Any], dict[str, Any]], Any]  # text_config, sparse_attention_config


def changed(change: Change) -> dict[str, Any]:
    raw = released()
    text = raw["text_config"]
    change(text, text["sparse_attention_config"])
    return raw


def test_both_spellings_are_the_same_model() -> None:
    one, other = parse_config(released()), parse_config(transformers())
    assert replace(one, architecture="") == replace(other, architecture="")
    assert [layer.attention for layer in one.layers] == ["dense"] + ["sparse"] * 3
    assert [layer.mlp for layer in one.layers] == ["dense"] + ["moe"] * 3
    assert (one.rotary_dim, one.block_size, one.topk_blocks) == (16, 16, 4)


def test_a_text_config_needs_no_wrapper() -> None:
    raw = released()["text_config"]
    raw["architectures"] = ["MiniMaxM3SparseForCausalLM"]
    assert parse_config(raw).architecture == "MiniMaxM3SparseForCausalLM"


def test_the_class_decides_and_not_the_model_type_of_the_text_part() -> None:
    raw = released()
    raw["text_config"]["model_type"] = "something_else"
    assert parse_config(raw).num_layers == 4


def test_attention_and_mlp_lists_are_independent() -> None:
    config = parse_config(changed(lambda t, s: t.update(moe_layer_freq=[1, 0, 0, 1])))
    kinds = [(layer.attention, layer.mlp) for layer in config.layers]
    assert kinds == [("dense", "moe"), ("sparse", "dense"), ("sparse", "dense"), ("sparse", "moe")]


REFUSED: dict[str, tuple[Change, tuple[str, ...]]] = {
    "rotary_dim against the factor": (
        lambda t, s: t.update(rotary_dim=32),
        ("rotary_dim is 32", "partial_rotary_factor 0.5", "16"),
    ),
    "rotary_dim alone": (
        lambda t, s: t.pop("partial_rotary_factor"),
        ("partial_rotary_factor", "is missing"),
    ),
    "odd rotary width": (
        lambda t, s: t.update(partial_rotary_factor=0.28125, rotary_dim=9),
        ("rotates 9 dims", "even"),
    ),
    "a factor that is no part": (
        lambda t, s: t.update(partial_rotary_factor=1e300),
        ("partial_rotary_factor is 1e+300", "at most 1"),
    ),
    "a corrupt layer count": (
        lambda t, s: t.update(num_hidden_layers=10**12),
        ("num_hidden_layers is 1000000000000",),
    ),
    "flat theta against rope_parameters": (
        lambda t, s: t.update(rope_parameters={"rope_theta": 1e4}),
        ("rope_theta is 5000000 but rope_parameters.rope_theta is 10000.0",),
    ),
    "spellings disagree on the block size": (
        lambda t, s: t.update(index_block_size=128),
        ("sparse_block_size is 16 but index_block_size is 128",),
    ),
    "spellings disagree on the layers": (
        lambda t, s: t.update(layer_types=["minimax_m3_sparse"] * 4),
        ("sparse_attention_freq and layer_types disagree at layers [0]",),
    ),
    "index heads": (
        lambda t, s: s.update(sparse_num_index_heads=4),
        ("4 index heads for 2 key-value heads",),
    ),
    "a short sparse list": (
        lambda t, s: s.update(sparse_attention_freq=[1, 1]),
        ("sparse_attention_freq has 2 entries for num_hidden_layers 4",),
    ),
    "a long expert list": (
        lambda t, s: t.update(moe_layer_freq=[1] * 5),
        ("moe_layer_freq has 5 entries for num_hidden_layers 4",),
    ),
    "a number for a list": (
        lambda t, s: t.update(moe_layer_freq=1),
        ("moe_layer_freq is 1", "list"),
    ),
    "an unknown layer type": (
        lambda t, s: t.update(layer_types=["sliding_attention"] * 4),
        ("layer_types contains 'sliding_attention'", "full_attention"),
    ),
    "activation": (lambda t, s: t.update(hidden_act="gelu"), ("hidden_act is 'gelu'",)),
    "silu under the released spelling": (
        lambda t, s: t.update(hidden_act="silu"),
        ("hidden_act is 'silu'",),
    ),
    "scoring": (lambda t, s: t.update(scoring_func="softmax"), ("scoring_func is 'softmax'",)),
    "score type": (lambda t, s: s.update(sparse_score_type="mean"), ("sparse_score_type",)),
    "qk norm": (lambda t, s: t.update(qk_norm_type="per_layer"), ("qk_norm_type",)),
    "output gate": (lambda t, s: t.update(attention_output_gate=True), ("attention_output_gate",)),
    "plain norms": (lambda t, s: t.update(use_gemma_norm=False), ("use_gemma_norm is False",)),
    "no routing bias": (lambda t, s: t.update(use_routing_bias=False), ("use_routing_bias",)),
    "two shared experts": (lambda t, s: t.update(n_shared_experts=2), ("n_shared_experts is 2",)),
    "tied head": (lambda t, s: t.update(tie_word_embeddings=True), ("tie_word_embeddings",)),
    "stretched rope": (
        lambda t, s: t.update(rope_parameters={"rope_type": "yarn"}),
        ("rope_parameters.rope_type is 'yarn'",),
    ),
    "quantised weights": (
        lambda t, s: t.update(quantization_config={"quant_method": "gptq"}),
        ("quantization_config.quant_method is 'gptq'", "MXFP8, MXFP4 or NVFP4"),
    ),
    "an index value branch": (
        lambda t, s: s.update(sparse_disable_index_value=[0, 1, 0, 1]),
        ("sparse_disable_index_value is 0 at sparse layers [2]",),
    ),
    "more forced blocks than slots": (
        lambda t, s: s.update(sparse_init_block=3, sparse_local_block=2),
        ("3 init and 2 local blocks do not fit in sparse_topk_blocks 4",),
    ),
    "no local block": (lambda t, s: s.update(sparse_local_block=0), ("sparse_local_block is 0",)),
    "a misspelt sparse key": (
        lambda t, s: s.update(sparse_init_blocks=1),
        ("sparse_attention_config.sparse_init_blocks is not a known key",),
    ),
    "sparse layers while sparse attention is off": (
        lambda t, s: s.update(use_sparse_attention=False),
        ("use_sparse_attention is false", "[1, 2, 3]"),
    ),
    "heads do not divide": (
        lambda t, s: t.update(num_attention_heads=3),
        ("num_attention_heads 3 is not a multiple of num_key_value_heads 2",),
    ),
    "more experts chosen than there are": (
        lambda t, s: t.update(num_experts_per_tok=8),
        ("num_experts_per_tok 8 exceeds num_local_experts 4",),
    ),
    "activation parameters have no defaults": (
        lambda t, s: (t.pop("swiglu_alpha"), t.pop("swiglu_limit")),
        ("swiglu_alpha is missing", "swiglu_limit is missing"),
    ),
    "a negative size": (lambda t, s: t.update(hidden_size=-1), ("hidden_size is -1",)),
    "a size as text": (lambda t, s: t.update(vocab_size="512"), ("vocab_size is '512'",)),
    "an end token outside the vocabulary": (
        lambda t, s: t.update(eos_token_id=[2, 512]),
        ("id 512, outside vocab_size 512",),
    ),
    "the index narrower than the rotation": (
        lambda t, s: s.update(sparse_index_dim=8),
        ("rotary width 16 exceeds the index head dim 8",),
    ),
    "reuse with a zero frequency": (
        lambda t, s: t.update(use_index_cache=True, index_topk_freq=0),
        ("index_topk_freq is 0",),
    ),
    "reuse before anything is computed": (
        lambda t, s: t.update(use_index_cache=True, index_topk_pattern="SFF"),
        ("first sparse layer",),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_contradiction_or_the_unsupported_is_named(case: str) -> None:
    change, words = REFUSED[case]
    with pytest.raises(ModelConfigError) as caught:
        parse_config(changed(change))
    for word in words:
        assert word in str(caught.value)


def test_every_problem_is_named_at_once() -> None:
    def change(t: dict[str, Any], s: dict[str, Any]) -> None:
        t.update(hidden_act="gelu", rotary_dim=2, head_dim=None, moe_layer_freq=[1])
        s.update(sparse_topk_blocks=0, sparse_num_index_heads=1)

    with pytest.raises(ModelConfigError) as caught:
        parse_config(changed(change))
    message = str(caught.value)
    for word in ("hidden_act", "head_dim is missing", "moe_layer_freq", "sparse_topk_blocks is 0",
                 "1 index heads"):  # fmt: skip
        assert word in message


def test_an_unknown_architecture_is_refused_with_those_served() -> None:
    with pytest.raises(ModelConfigError, match=r"LlamaForCausalLM.*MiniMaxM3SparseFor"):
        parse_config({**released(), "architectures": ["LlamaForCausalLM"]})


def test_a_model_without_sparse_layers_needs_no_index_fields() -> None:
    raw = released()
    raw["text_config"].pop("sparse_attention_config")
    raw["text_config"]["layer_types"] = ["full_attention"] * 4
    config = parse_config(raw)
    assert not any(layer.owns_index for layer in config.layers)
    assert config.block_size == 128


REUSE: dict[str, tuple[SelectionReuse, int, str]] = {
    "off": (SelectionReuse(), 5, "FFFFF"),
    "every third computes": (SelectionReuse(freq=3), 7, "FSSFSSF"),
    "after two that always compute": (SelectionReuse(freq=2, skip_offset=2), 7, "FFFSFSF"),
    "by pattern, computing past its end": (SelectionReuse(pattern="FSSF"), 6, "FSSFFF"),
}


@pytest.mark.parametrize("case", REUSE)
def test_reuse_counts_sparse_layers(case: str) -> None:
    reuse, count, expected = REUSE[case]
    assert "".join("S" if reuse.reuses(i) else "F" for i in range(count)) == expected


def test_the_ordinal_of_reuse_is_among_sparse_layers() -> None:
    sparse = [1, 0, 1, 1]
    raw = changed(
        lambda t, s: s.update(sparse_attention_freq=sparse, sparse_disable_index_value=sparse)
    )
    config = parse_config(raw, SelectionReuse(freq=2))
    assert [layer.reuses_selection for layer in config.layers] == [False, False, True, False]
    assert [layer.owns_index for layer in config.layers] == [True, False, False, True]


@pytest.mark.parametrize(
    ("reuse", "words"),
    [
        (SelectionReuse(freq=-1), "index_topk_freq is -1"),
        (SelectionReuse(pattern="SF"), "first sparse layer"),
        (SelectionReuse(pattern="FX"), "'X'"),
        (SelectionReuse(pattern="FSFS"), "4 letters for 3 sparse layers"),
        (SelectionReuse(freq=2, pattern="FS"), "give one of them"),
    ],
)
def test_reuse_that_cannot_be_meant_is_refused(reuse: SelectionReuse, words: str) -> None:
    with pytest.raises(ModelConfigError, match=words):
        parse_config(released(), reuse)


def folder_with(path: Path, **files: object) -> Path:
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / f"{name}.json").write_text(text)
    return path


def test_options_turn_reuse_on_and_the_file_may_too(tmp_path: Path) -> None:
    raw = released()
    folder = folder_with(tmp_path, config=raw)
    off = load_config(folder, EngineOptions(model="m"))
    on = load_config(folder, EngineOptions(model="m", use_index_cache=True, index_topk_freq=3))
    assert not off.reuses_selection
    assert [layer.reuses_selection for layer in on.layers] == [False, False, True, True]
    raw["text_config"].update(use_index_cache=True, index_topk_freq=2)
    folder_with(tmp_path, config=raw)
    assert load_config(folder, EngineOptions(model="m")).reuses_selection


def test_a_reuse_option_that_changes_nothing_is_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, config=released())
    with pytest.raises(ModelConfigError, match="use_index_cache"):
        load_config(folder, EngineOptions(model="m", index_topk_freq=4))


def test_end_tokens_of_the_generation_config_are_added(tmp_path: Path) -> None:
    folder_with(tmp_path, config=released(), generation_config={"eos_token_id": [2, 7]})
    assert load_config(tmp_path).eos_token_ids == (2, 7)


def test_a_directory_without_a_usable_config_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist; give a directory"):
        load_config(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load_config(tmp_path)
    folder_with(tmp_path, config="{")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        load_config(tmp_path)
    folder_with(tmp_path, config=[1])
    with pytest.raises(CheckpointError, match="must hold a JSON object"):
        load_config(tmp_path)
    with pytest.raises(CheckpointError, match="is a file; give a directory"):
        load_config(tmp_path / "config.json")


def test_a_generation_config_with_unusable_end_tokens(tmp_path: Path) -> None:
    folder_with(tmp_path, config=released(), generation_config={"eos_token_id": "stop"})
    with pytest.raises(ModelConfigError, match=r"eos_token_id of .* is 'stop'"):
        load_config(tmp_path)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
PLACES = [
    (spelling.__name__, path)
    for spelling in (released, transformers)
    for path in paths_of(spelling())
]


@given(st.sampled_from(PLACES), JSON_VALUES)
@settings(max_examples=400, deadline=None)
def test_any_value_anywhere_parses_or_is_refused(place: tuple[str, KeyPath], value: object) -> None:
    raw = {"released": released, "transformers": transformers}[place[0]]()
    target = raw
    for key in place[1][:-1]:
        target = target[key]
    target[place[1][-1]] = value
    with contextlib.suppress(ModelConfigError):
        parse_config(raw)
