"""The scripted server as a real process, and a tokenizer small enough to train on the spot."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from gnomon.harness.nouns import ServerAddress

SERVER = Path(__file__).parents[1] / "fakes" / "openai_server.py"
KEY = "a-key-that-must-not-leak"

StartFake = Callable[..., AbstractContextManager[ServerAddress]]


@contextmanager
def fake_server(*flags: str) -> Iterator[ServerAddress]:
    """A fake server with these flags; always ended, always with exit code 0 unless it broke."""
    process = subprocess.Popen(
        [sys.executable, str(SERVER), "--api-key", KEY, *flags], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(line.rsplit(":", 1)[1])
        yield ServerAddress("127.0.0.1", port, "fake", KEY)
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="session")
def start_fake() -> StartFake:
    return fake_server


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE trained on this repository's own tests."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(path) for path in Path(__file__).parent.glob("*.py")], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
