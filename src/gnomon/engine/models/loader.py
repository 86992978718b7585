"""From a name or a directory to a loaded model."""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from gnomon.engine.errors import CheckpointError
from gnomon.engine.models.config import ModelConfig, read_json_object
from gnomon.engine.models.minimax_m3 import MiniMaxM3
from gnomon.engine.models.shards import (
    INDEX,
    TensorHeader,
    checkpoint_headers,
    read_tensors,
    shard_files,
)
from gnomon.engine.models.tensor_names import Index, is_text_tensor, parts_of_name, plain_name
from gnomon.engine.models.tensors import Shape, tensor_shapes
from gnomon.engine.models.weights import empty_weights, released_targets
from gnomon.engine.options import ComputeDtype, EngineOptions

logger = logging.getLogger(__name__)

_FLOAT_DTYPES = ("F32", "F16", "BF16")
_MOST_NAMED = 8  # problems of one kind spelled out in an error


@dataclass(frozen=True)
class _Part:
    """One released tensor inside a tensor of a file."""

    file: Path
    stored_name: str
    shape: Shape
    index: Index


def resolve_model(name_or_path: str) -> Path:
    """The checkpoint directory meant by a command-line argument.

    A preset's name is a random checkpoint with seed 0, written once under the user's cache
    directory. Concurrent callers are safe: each writes its own copy, the first rename wins.

    Raises:
        CheckpointError: neither a preset nor a directory.
    """
    from gnomon.engine.models.presets.write import PRESETS, generator_version, write_checkpoint

    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path
    if name_or_path not in PRESETS:
        what = "is a file, not a directory" if path.exists() else "does not exist"
        raise CheckpointError(
            f"model {name_or_path!r} {what} and is not a preset; give a checkpoint directory or "
            f"one of {', '.join(PRESETS)}"
        )
    import platformdirs

    parent = Path(platformdirs.user_cache_dir("gnomon")) / "models"
    target = parent / f"{name_or_path}-0-{generator_version()}"
    if target.is_dir():
        return target
    try:
        parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=parent))
    except OSError as error:
        raise CheckpointError(
            f"preset {name_or_path!r} cannot be kept under {parent}: {error}; set XDG_CACHE_HOME, "
            "or write it elsewhere with `gnomon model new` and give that directory"
        ) from error
    try:
        write_checkpoint(name_or_path, 0, scratch)
        scratch.chmod(0o755)
        try:
            scratch.rename(target)
        except OSError:
            if not target.is_dir():  # anything but another caller having been first
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def fingerprint(path: Path | str) -> str:
    """sha256, in hex, over the names and bytes of everything that decides what is served.

    That is config, generation config, weights and their index, tokenizer and chat template.
    """
    folder = Path(path)
    read_json_object(folder, "config.json", required=True)
    names = {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        INDEX,
    }
    files = [*(folder / n for n in names if (folder / n).is_file()), *shard_files(folder)]
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda f: f.name):
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").digest()
        digest.update(file.name.encode() + b"\0" + content)
    return digest.hexdigest()


def compute_dtype(options: EngineOptions, device: torch.device) -> torch.dtype:
    """Dtype of weights and activations: float32 on CPU and bfloat16 on a GPU unless asked."""
    if options.dtype is ComputeDtype.AUTO:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return torch.float32 if options.dtype is ComputeDtype.FLOAT32 else torch.bfloat16


def load_model(
    path: Path | str,
    config: ModelConfig,
    options: EngineOptions,
    device: torch.device | str = "cpu",
) -> MiniMaxM3:
    """Load the text model of a checkpoint.

    Memory in use is the model's plus one tensor: headers are checked before anything is read, then
    each file is streamed into its place.

    Args:
        path: checkpoint directory, single file or sharded, in the released layout or in that of
            transformers' text-only class.
        config: from :func:`gnomon.engine.models.config.load_config` of the same directory.
        options: for the compute dtype.
        device: where the weights go.

    Raises:
        CheckpointError: naming every missing, unexpected, misshapen or unreadable tensor.
    """
    where = torch.device(device)
    headers = checkpoint_headers(Path(path))
    parts = _locate(headers, config)
    weights = empty_weights(config, compute_dtype(options, where), where)
    targets = released_targets(config, weights)
    for file in sorted({part.file for part in parts.values()}):
        wanted: dict[str, list[tuple[str, _Part]]] = {}
        for name, part in parts.items():
            if part.file == file and name in targets:
                wanted.setdefault(part.stored_name, []).append((name, part))
        for stored_name, tensor in read_tensors(file, list(wanted)):
            for name, part in wanted[stored_name]:
                targets[name].copy_(tensor[part.index] if part.index else tensor)
    return MiniMaxM3(config, weights)


def _locate(headers: dict[str, TensorHeader], config: ModelConfig) -> dict[str, _Part]:
    """Every tensor of the model, by released name, with where it is in the files."""
    text = {name: h for name, h in headers.items() if is_text_tensor(name)}
    if len(text) < len(headers):
        logger.info(
            "text only: skipping %d tensors of the vision tower, its projector or built-in drafts",
            len(headers) - len(text),
        )
    expected = tensor_shapes(config)
    parts: dict[str, _Part] = {}
    unexpected: list[str] = []
    unusable: list[str] = []
    for stored_name, header in text.items():
        name = plain_name(stored_name)
        split = parts_of_name(name, header.shape, expected)
        if not split or any(part not in expected for part, _, _ in split):
            unexpected.append(stored_name)
            continue
        if header.dtype not in _FLOAT_DTYPES:
            unusable.append(f"{stored_name} is {header.dtype}")
        for part, shape, index in split:
            parts[part] = _Part(header.file, stored_name, shape, index)
    missing = [name for name in expected if name not in parts]
    misshapen = [
        f"{parts[name].stored_name} gives {name} {list(parts[name].shape)}, not {list(shape)}"
        for name, shape in expected.items()
        if name in parts and parts[name].shape != shape
    ]
    problems = [
        *_listing("missing", missing),
        *_listing("unexpected", unexpected),
        *_listing("of the wrong shape for config.json", misshapen),
        *_listing(f"of a dtype other than {', '.join(_FLOAT_DTYPES)}", unusable),
    ]
    if problems:
        raise CheckpointError("the checkpoint does not match its config:\n" + "\n".join(problems))
    return parts


def _listing(what: str, items: list[str]) -> list[str]:
    if not items:
        return []
    more = f" and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    plural = "tensor is" if len(items) == 1 else "tensors are"
    return [f"  - {len(items)} {plural} {what}: {'; '.join(items[:_MOST_NAMED])}{more}"]
