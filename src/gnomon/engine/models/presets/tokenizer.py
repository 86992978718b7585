"""A small byte-level BPE tokenizer with the M3 family's special tokens, trained from corpus.txt."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

BEGIN_DOCUMENT = "]~!b["
BEGIN_MESSAGE = "]~b]"
END_MESSAGE = "[e~["
TOOL_NAMESPACE = "]<]minimax[>["
IMAGE = "]<]image[>["
VIDEO = "]<]video[>["
SPECIAL_TOKENS = (
    BEGIN_DOCUMENT,
    BEGIN_MESSAGE,
    END_MESSAGE,
    TOOL_NAMESPACE,
    IMAGE,
    VIDEO,
)
"""In the order of their ids, which are the last of the vocabulary but for the two below."""

PLAIN_TOKENS = ("<mm:think>", "</mm:think>")
"""Vocabulary entries that are not special: they are part of the text a model writes."""


def preset_text(name: str) -> str:
    """A text file of this package."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def train_tokenizer(vocab_size: int) -> Tokenizer:
    """Train on corpus.txt; the same bytes come out for the same corpus and size.

    The base alphabet is all 256 bytes, so any text round-trips.

    Args:
        vocab_size: entries in all, special tokens included.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS) - len(PLAIN_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(preset_text("corpus.txt").splitlines(keepends=True), trainer)
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in PLAIN_TOKENS])
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the corpus gives {tokenizer.get_vocab_size()} entries, not {vocab_size}; "
            "choose a smaller vocab_size"
        )
    return tokenizer


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Ids of the tokens that a config.json names."""
    names = {"bos": BEGIN_DOCUMENT, "eos": END_MESSAGE, "image": IMAGE, "video": VIDEO}
    vocab = tokenizer.get_vocab()
    return {key: vocab[token] for key, token in names.items()}


def write_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja.

    The three also load with ``transformers.AutoTokenizer`` without network.
    """
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "bos_token": BEGIN_DOCUMENT,
        "eos_token": END_MESSAGE,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "extra_special_tokens": [
            t for t in SPECIAL_TOKENS if t not in (BEGIN_DOCUMENT, END_MESSAGE)
        ],
    }
    write_json(folder / "tokenizer_config.json", config)
    (folder / "chat_template.jinja").write_text(
        preset_text("chat_template.jinja"), encoding="utf-8"
    )


def write_json(path: Path, value: object) -> None:
    """Write indented JSON in key order as given, with a final newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
