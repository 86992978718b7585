"""The bytes of every token, from a byte-level BPE tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gnomon.engine.errors import CheckpointError

WRITTEN_MARKERS = frozenset({
    "]<]minimax[>[", "<mm:think>", "</mm:think>", "<think>", "</think>",
    "<minimax:tool_call>", "</minimax:tool_call>", "<tool_call>", "</tool_call>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|open|>", "<|close|>", "<|sep|>",
})  # fmt: skip
"""Special tokens that models write in their replies, and grammars may allow."""


def token_bytes(folder: Path, size: int, readable: frozenset[str]) -> list[bytes]:
    """UTF-8 bytes of every id below ``size``; none for ids a grammar must never use.

    Args:
        folder: the checkpoint.
        size: of the model's vocabulary, which may be larger than the tokenizer's.
        readable: special tokens that are part of what a model writes; all others have no bytes.

    Raises:
        CheckpointError: tokenizer.json is missing or unusable.
    """
    path = folder / "tokenizer.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        vocabulary: dict[str, int] = document["model"]["vocab"]
        added: list[dict[str, Any]] = document.get("added_tokens") or []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    table = [b""] * size
    byte_of = _byte_alphabet()
    for token, token_id in vocabulary.items():
        if token_id < size and all(char in byte_of for char in token):
            table[token_id] = bytes(byte_of[char] for char in token)
    for entry in added:
        hidden = entry["special"] and entry["content"] not in readable
        if entry["id"] < size:
            table[entry["id"]] = b"" if hidden else entry["content"].encode()
    return table


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-in of every byte in byte-level BPE vocabularies (the GPT-2 rule)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_in = iter(range(0x100, 0x200))
    return {chr(b if b in printable else next(stand_in)): b for b in range(0x100)}
