"""From a name or a directory to a loaded model."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from gnomon.engine.errors import CheckpointError
from gnomon.engine.models.config import ModelConfig, read_json_object
from gnomon.engine.models.dummy import fill
from gnomon.engine.models.minimax_m3 import MiniMaxM3
from gnomon.engine.models.sharding import rank_config, shard
from gnomon.engine.models.shards import INDEX, checkpoint_headers, shard_files
from gnomon.engine.models.stored import Stored, locate
from gnomon.engine.models.streaming import stream
from gnomon.engine.models.tensors import tensor_shapes
from gnomon.engine.models.weight_formats import Formats, WeightGroup, group_of
from gnomon.engine.models.weights import ModelWeights, empty_weights, released_targets
from gnomon.engine.options import ComputeDtype, EngineOptions, LoadFormat, WeightFormat


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


def fingerprint(path: Path | str, *, weights: bool = True) -> str:
    """sha256, in hex, over the names and bytes of everything that decides what is served.

    That is config, generation config, weights and their index, tokenizer and chat template.

    Args:
        path: checkpoint directory.
        weights: False leaves the weight files out, for random weights.
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
    shards = shard_files(folder) if weights else ()
    files = [*(folder / n for n in names if (folder / n).is_file()), *shards]
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
    each file is streamed into its place. Quantised matrices stay packed; plain ones are packed on
    the way in if the options say so.

    Args:
        path: checkpoint directory, single file or sharded, in the released layout or in that of
            transformers' text-only class.
        config: from :func:`gnomon.engine.models.config.load_config` of the same directory.
        options: for the compute dtype, the load format and the formats of experts and linears.
        device: where the weights go.

    Raises:
        CheckpointError: naming every missing, unexpected, misshapen or unreadable tensor, or a
            matrix that is already packed in another format than asked.
    """
    return MiniMaxM3(config, load_weights(path, config, options, device))


def load_weights(
    path: Path | str,
    config: ModelConfig,
    options: EngineOptions,
    device: torch.device | str = "cpu",
    rank: int = 0,
    ranks: int = 1,
) -> ModelWeights:
    """The weights of one tensor-parallel rank: its part of each tensor, packed as it is stored.

    Args:
        path: see :func:`load_model`.
        config: of the whole model.
        options: see :func:`load_model`.
        device: where the weights go.
        rank: 0 to ``ranks - 1``.
        ranks: tensor-parallel size; see :func:`gnomon.engine.models.sharding.sharding_problems`.

    Raises:
        CheckpointError: see :func:`load_model`.
    """
    where = torch.device(device)
    dtype = compute_dtype(options, where)
    held = rank_config(config, rank, ranks)
    if options.load_format is LoadFormat.DUMMY:
        return _random_weights(held, options, dtype, where)
    stored = stored_tensors(Path(path), config)
    weights = empty_weights(held, dtype, where, loaded_formats(stored, options))
    shapes = tensor_shapes(config)
    targets = {
        name: (target, shard(config, name, shapes[name], rank, ranks))
        for name, target in released_targets(held, weights).items()
    }
    stream(stored, targets)
    return weights


def has_weights(path: Path) -> bool:
    """Whether a checkpoint directory has weight files, or an index that names some."""
    return (path / INDEX).is_file() or any(path.glob("*.safetensors"))


def stored_tensors(path: Path, config: ModelConfig) -> dict[str, Stored]:
    """Every tensor of a checkpoint from its headers; see :func:`locate`."""
    return locate(checkpoint_headers(path), config)


def loaded_formats(stored: Mapping[str, Stored], options: EngineOptions) -> Formats:
    """Format of every matrix once it is loaded: what the files hold, or what they are packed to.

    Raises:
        CheckpointError: a matrix is packed already, and in another format than asked.
    """
    asked = asked_formats(options)
    wrong = [
        f"{name} is {tensor.format.value}"
        for name, tensor in stored.items()
        if asked(name) is not None and tensor.format not in (WeightFormat.PLAIN, asked(name))
    ]
    if wrong:
        more = f" and {len(wrong) - 1} more" if wrong[1:] else ""
        raise CheckpointError(
            f"{wrong[0]}{more}: only bf16 weights can be quantised while they are loaded; leave "
            "--expert-weights and --linear-weights out, or give the bf16 checkpoint"
        )
    formats = {name: asked(name) or tensor.format for name, tensor in stored.items()}
    return formats.__getitem__


def asked_formats(options: EngineOptions) -> Callable[[str], WeightFormat | None]:
    """Format that the options ask of each matrix; None leaves it as the checkpoint has it."""
    by_group = {
        WeightGroup.EXPERTS: options.expert_weights,
        WeightGroup.LINEARS: options.linear_weights,
    }
    return lambda name: by_group.get(group_of(name))


def _random_weights(
    config: ModelConfig, options: EngineOptions, dtype: torch.dtype, device: torch.device
) -> ModelWeights:
    """Each tensor from a stream of its own, so that ranks agree about what all of them hold."""
    asked = asked_formats(options)
    weights = empty_weights(config, dtype, device, lambda name: asked(name) or WeightFormat.PLAIN)
    generator = torch.Generator(device)
    for name, target in released_targets(config, weights).items():
        digest = hashlib.sha256(f"{options.seed}/{name}".encode()).digest()
        fill(name, target, generator.manual_seed(int.from_bytes(digest[:4])))
    return weights
