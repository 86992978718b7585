"""Writing a quantised checkpoint: the released layout in, the released layout out.

Names of the packed tensors are those of public checkpoints: MXFP8 as MiniMax-M3-MXFP8 writes it
(``weight``, ``weight_scale_inv``), MXFP4 as Quark does (``weight``, ``weight_scale``), NVFP4 as
ModelOpt does (``weight``, ``weight_scale``, ``weight_scale_2``).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from gnomon.engine.errors import CheckpointError
from gnomon.engine.models.config import parse_config, read_json_object
from gnomon.engine.models.loader import asked_formats, loaded_formats, stored_tensors
from gnomon.engine.models.matrix import Matrix
from gnomon.engine.models.progress import progress
from gnomon.engine.models.quantise import quantise
from gnomon.engine.models.shards import INDEX, read_tensors
from gnomon.engine.models.stored import Piece, Stored
from gnomon.engine.options import EngineOptions, WeightFormat

_PREFIX = "language_model."
_SHARD_BYTES = 4 << 30
_COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


def quantise_checkpoint(
    source: Path, target: Path, options: EngineOptions, shard_bytes: int = _SHARD_BYTES
) -> Path:
    """Write the text model of a bf16 checkpoint with packed experts and linears.

    Loading the result gives the bytes that loading the source with the same options gives. Memory
    in use is one shard. The target appears complete or not at all.

    Args:
        source: checkpoint directory.
        target: a new or empty directory.
        options: ``expert_weights`` and ``linear_weights``; at least one.
        shard_bytes: a file is closed once it has this many.

    Returns:
        ``target``.

    Raises:
        CheckpointError: nothing was asked, the source cannot be read or is packed already, a
            matrix cannot be packed, or the target is not empty.
    """
    if not {options.expert_weights, options.linear_weights} - {None, WeightFormat.PLAIN}:
        raise CheckpointError("nothing to quantise: name a format for the experts or the linears")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"{target} is not an empty directory; give a new one")
    raw = read_json_object(source, "config.json", required=True)
    stored = stored_tensors(source, parse_config(raw))
    loaded_formats(stored, options)  # refuses a source that is packed already
    scratch = target.with_name(f".{target.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        _write_weights(scratch, stored, options, shard_bytes)
        raw["quantization_config"] = {
            "quant_method": "gnomon",
            "experts": (options.expert_weights or WeightFormat.PLAIN).value,
            "linears": (options.linear_weights or WeightFormat.PLAIN).value,
        }
        (scratch / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
        for name in _COMPANIONS:
            if (source / name).is_file():
                shutil.copyfile(source / name, scratch / name)
        if target.exists():
            target.rmdir()
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _write_weights(
    folder: Path, stored: dict[str, Stored], options: EngineOptions, shard_bytes: int
) -> None:
    """Files ``model-00001.safetensors`` and on, and their index."""
    weight_map: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    total = size = 0

    def close() -> None:
        nonlocal shard, size
        name = f"model-{len(set(weight_map.values())) + 1:05}.safetensors"
        save_file(shard, folder / name)
        (folder / name).chmod(0o644)  # safetensors makes it private
        weight_map.update(dict.fromkeys(shard, name))
        shard, size = {}, 0

    for name, tensor in _packed_tensors(stored, options):
        shard[_PREFIX + name] = tensor
        size += tensor.nbytes
        total += tensor.nbytes
        if size >= shard_bytes:
            close()
    if shard:
        close()
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _packed_tensors(
    stored: dict[str, Stored], options: EngineOptions
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the result, in the order in which the source's files hold them."""
    asked = asked_formats(options)
    wanted: dict[Path, dict[str, list[tuple[str, Piece]]]] = {}
    for name, one in stored.items():
        piece = one.pieces["data"]
        users = wanted.setdefault(piece.file, {}).setdefault(piece.stored_name, [])
        users.append((name, piece))
    with progress("quantising", sum(file.stat().st_size for file in wanted)) as advance:
        for file, names in sorted(wanted.items()):
            for stored_name, tensor in read_tensors(file, list(names)):
                for name, piece in names[stored_name]:
                    part = tensor[piece.index] if piece.index else tensor
                    fmt = asked(name) or WeightFormat.PLAIN
                    if fmt is WeightFormat.PLAIN:
                        yield name, part.contiguous()
                        continue
                    try:
                        matrix = quantise(part, fmt)
                    except ValueError as error:
                        raise CheckpointError(f"{name} cannot be quantised: {error}") from error
                    yield from _named(name.removesuffix("weight"), matrix)
                advance(tensor.nbytes)


def _named(prefix: str, matrix: Matrix) -> Iterator[tuple[str, torch.Tensor]]:
    assert matrix.scale is not None
    yield prefix + "weight", matrix.data
    mxfp8 = matrix.format is WeightFormat.MXFP8
    yield prefix + ("weight_scale_inv" if mxfp8 else "weight_scale"), matrix.scale
    if matrix.row_scale is not None:
        yield prefix + "weight_scale_2", matrix.row_scale[0].clone()
