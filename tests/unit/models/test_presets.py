"""The nano preset: the same bytes every time, and usable by other programs."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from gnomon.engine.errors import CheckpointError
from gnomon.engine.models.config import load_config
from gnomon.engine.models.presets.write import write_checkpoint

FILES = {
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
}


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint("nano", 0, tmp_path_factory.mktemp("nano") / "model")


def sums(folder: Path) -> dict[str, str]:
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.iterdir()}


def run_model_new(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gnomon", "model", "new", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_another_process_writes_the_same_bytes(nano: Path, tmp_path: Path) -> None:
    done = run_model_new("--preset", "nano", "--seed", "0", str(tmp_path / "again"))
    assert done.returncode == 0, done.stderr
    assert set(sums(nano)) == FILES
    assert sums(tmp_path / "again") == sums(nano)


def test_the_seed_changes_the_weights_alone(nano: Path, tmp_path: Path) -> None:
    other = write_checkpoint("nano", 1, tmp_path / "other")
    assert {n for n, s in sums(other).items() if s != sums(nano)[n]} == {"model.safetensors"}


def test_the_geometry_is_the_released_one(nano: Path) -> None:
    config = load_config(nano)
    assert (config.head_dim, config.index_dim, config.block_size) == (128, 128, 128)
    assert config.num_kv_heads >= 2
    assert {(layer.attention, layer.mlp) for layer in config.layers} == {("sparse", "moe")}


def test_a_directory_with_something_in_it_is_left_alone(nano: Path, tmp_path: Path) -> None:
    done = run_model_new(str(nano))
    assert done.returncode == 2
    assert "is not an empty directory" in done.stderr
    assert "Traceback" not in done.stderr
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="not an empty directory"):
        write_checkpoint("nano", 0, tmp_path / "file")


def test_an_unknown_preset_lists_the_presets(tmp_path: Path) -> None:
    done = run_model_new("--preset", "huge", str(tmp_path / "x"))
    assert done.returncode == 2
    assert "unknown preset 'huge'; the presets are nano" in done.stderr
    assert not (tmp_path / "x").exists()


TEXTS = (
    "What is the area of a triangle?",
    "naïve café, 東京, Ω≈3, 🚀👩‍👩‍👧, עברית",
    '{"a": [1, 2.5, null], "b": "x\\ny"}\n\tdef f(x):\r\n    return x',
    "\x00\x01 control \u200b\ufeff",
    "",
)


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives_the_tokenizer(nano: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(nano / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_every_id_of_the_model_is_a_token_and_every_marker_one_id(nano: Path) -> None:
    tokenizer = Tokenizer.from_file(str(nano / "tokenizer.json"))
    config = load_config(nano)
    assert tokenizer.get_vocab_size() == config.vocab_size
    assert config.bos_token_id == tokenizer.token_to_id("]~!b[")
    assert config.eos_token_ids == (tokenizer.token_to_id("[e~["),)
    for marker in ("]~!b[", "]~b]", "[e~[", "]<]minimax[>[", "<mm:think>", "</mm:think>"):
        assert len(tokenizer.encode(marker).ids) == 1


def test_transformers_reads_tokenizer_and_template_without_network(
    nano: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    theirs = AutoTokenizer.from_pretrained(nano)
    ours = Tokenizer.from_file(str(nano / "tokenizer.json"))
    for text in TEXTS:
        assert theirs(text).input_ids == ours.encode(text).ids
    assert (theirs.bos_token, theirs.eos_token) == ("]~!b[", "[e~[")
    prompt = theirs.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt.endswith("]~b]user\nhi[e~[\n]~b]ai\n")


def test_the_default_output_cap_is_short(nano: Path) -> None:
    generation = json.loads((nano / "generation_config.json").read_text())
    assert generation["max_new_tokens"] == 256
