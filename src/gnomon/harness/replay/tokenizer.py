"""Lays a tokenizer out the way Hugging Face's cache does, so that a client finds it offline."""

from __future__ import annotations

import shutil
from pathlib import Path

from gnomon.harness.errors import HarnessError

REPOSITORY = "local/tokenizer"
"""The name under which the client asks for the tokenizer."""

_REVISION = "0" * 39 + "1"
_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


class TokenizerMissing(HarnessError):
    """A folder has no tokenizer that a client could load."""


def lay_out_tokenizer(source: Path, hf_home: Path) -> str:
    """Copy a tokenizer into a cache below ``hf_home`` and return the name to ask for.

    With ``HF_HOME`` set to that folder and ``HF_HUB_OFFLINE=1``, transformers resolves the name in
    every process of the client. A plain directory would do only online: several of AIPerf's
    processes take any tokenizer for a repository name when offline.

    Raises:
        TokenizerMissing: the source has no ``tokenizer.json`` or ``tokenizer.model``.
    """
    if not any((source / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        raise TokenizerMissing(
            f"{source} has no tokenizer.json; the replay needs the tokenizer of the served model "
            "to write prompts of the right length"
        )
    repository = hf_home / "hub" / f"models--{REPOSITORY.replace('/', '--')}"
    snapshot = repository / "snapshots" / _REVISION
    snapshot.mkdir(parents=True)
    for name in _FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, snapshot / name)
    refs = repository / "refs"
    refs.mkdir()
    (refs / "main").write_text(_REVISION)
    return REPOSITORY
