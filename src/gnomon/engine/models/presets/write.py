"""Writing a deterministic random checkpoint, complete with tokenizer and chat template."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from gnomon.engine.errors import CheckpointError
from gnomon.engine.models.config import parse_config
from gnomon.engine.models.presets.nano import nano_config
from gnomon.engine.models.presets.random_weights import random_weights
from gnomon.engine.models.presets.tokenizer import (
    special_ids,
    train_tokenizer,
    write_json,
    write_tokenizer,
)


@dataclass(frozen=True)
class Preset:
    """A model to write.

    Attributes:
        vocab_size: of tokenizer and model.
        config: content of config.json for a vocabulary size and special token ids.
    """

    vocab_size: int
    config: Callable[[int, Mapping[str, int]], dict[str, Any]]


PRESETS: dict[str, Preset] = {"nano": Preset(2048, nano_config)}

PREFIX = "language_model."
"""What the released checkpoints put before every tensor of the text model."""


def write_checkpoint(preset: str, seed: int, path: Path | str) -> Path:
    """Write a checkpoint in the released layout; the same preset and seed give the same bytes.

    Args:
        preset: a key of :data:`PRESETS`.
        seed: of the weights; tokenizer, template and config do not depend on it.
        path: a directory that does not exist or is empty.

    Returns:
        The directory.

    Raises:
        CheckpointError: the preset is unknown, or the directory is not empty.
    """
    if preset not in PRESETS:
        raise CheckpointError(f"unknown preset {preset!r}; the presets are {', '.join(PRESETS)}")
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"{folder} exists and is not an empty directory; choose another")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(PRESETS[preset].vocab_size)
    ids = special_ids(tokenizer)
    raw = PRESETS[preset].config(PRESETS[preset].vocab_size, ids)
    config = parse_config(raw)
    write_tokenizer(tokenizer, folder, config.max_position_embeddings)
    write_json(folder / "config.json", raw)
    write_json(folder / "generation_config.json", _generation_config(ids))
    tensors = {PREFIX + name: t for name, t in random_weights(config, seed).items()}
    weights = folder / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod((folder / "config.json").stat().st_mode)  # safetensors makes it private
    return folder


def _generation_config(ids: Mapping[str, int]) -> dict[str, Any]:
    """Defaults of a request. The output cap keeps clients short that send no max_tokens."""
    return {
        "bos_token_id": ids["bos"],
        "eos_token_id": ids["eos"],
        "do_sample": True,
        "temperature": 1.0,
        "top_p": 0.95,
        "max_new_tokens": 256,
        # Random weights end no string and no list by themselves.
        "structured_output_limits": {"text": 32, "items": 3},
    }


def generator_version() -> str:
    """12 hex digits that change whenever anything of the generator or its texts changes."""
    digest = hashlib.sha256()
    for file in sorted(resources.files(__package__).iterdir(), key=lambda f: f.name):
        if file.name.endswith((".py", ".txt", ".jinja")):
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
