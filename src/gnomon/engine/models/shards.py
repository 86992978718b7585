"""The safetensors files of a checkpoint: which exist, what they hold, and faults by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from gnomon.engine.errors import CheckpointError
from gnomon.engine.models.config import read_json_object

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class TensorHeader:
    """Where a tensor is and what the file says it is; nothing of its data has been read."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def shard_files(folder: Path) -> tuple[Path, ...]:
    """The weight files of a checkpoint: those its index names, else every ``*.safetensors``.

    Raises:
        CheckpointError: there is none, or the index is unreadable or names a missing file.
    """
    weight_map = _weight_map(folder)
    if weight_map is None:
        files = tuple(sorted(folder.glob("*.safetensors")))
        if not files:
            raise CheckpointError(
                f"{folder} has no *.safetensors file; this engine loads safetensors only"
            )
        return files
    names = sorted(set(weight_map.values()))
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise CheckpointError(f"{folder / INDEX} names files outside its directory: {outside}")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder / INDEX} names {len(missing)} of {len(names)} files that do not exist: "
            f"{', '.join(missing[:5])}; the download is incomplete"
        )
    return tuple(folder / name for name in names)


def _weight_map(folder: Path) -> dict[str, str] | None:
    """Tensor name to file name as the index has it; None without an index."""
    if not (folder / INDEX).is_file():
        return None
    weight_map = read_json_object(folder, INDEX, required=True).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / INDEX} has no weight_map; it is not a shard index")
    return {name: str(file) for name, file in weight_map.items()}


def checkpoint_headers(folder: Path) -> dict[str, TensorHeader]:
    """Every tensor of a checkpoint by its name on disk, held to the index if there is one.

    Raises:
        CheckpointError: see :func:`shard_files` and :func:`read_headers`; or the index and the
            files disagree about which tensor is where.
    """
    headers = read_headers(shard_files(folder))
    weight_map = _weight_map(folder)
    if weight_map is None:
        return headers
    found = {name: header.file.name for name, header in headers.items()}
    wrong = sorted(
        name for name in weight_map.keys() | found if weight_map.get(name) != found.get(name)
    )
    if wrong:
        told = [
            f"{name} (index: {weight_map.get(name, 'absent')}, files: {found.get(name, 'absent')})"
            for name in wrong[:5]
        ]
        raise CheckpointError(
            f"{folder / INDEX} and the files disagree about {len(wrong)} tensors: "
            f"{', '.join(told)}; download or write the checkpoint again"
        )
    return headers


def read_headers(files: tuple[Path, ...]) -> dict[str, TensorHeader]:
    """Every tensor of these files, by its name in the file.

    Raises:
        CheckpointError: a file is truncated or not safetensors, or two files hold one name.
    """
    headers: dict[str, TensorHeader] = {}
    for file in files:
        for name, shape, dtype in _headers_of(file):
            if name in headers:
                raise CheckpointError(
                    f"tensor {name} is in both {headers[name].file.name} and {file.name}"
                )
            headers[name] = TensorHeader(file, shape, dtype)
    return headers


def _headers_of(file: Path) -> list[tuple[str, tuple[int, ...], str]]:
    try:
        with safe_open(file, framework="pt") as shard:
            slices = [(name, shard.get_slice(name)) for name in shard.keys()]  # noqa: SIM118
            return [(name, tuple(s.get_shape()), s.get_dtype()) for name, s in slices]
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"{file} cannot be read as safetensors ({error}); it is truncated or damaged"
        ) from error


def read_tensors(file: Path, names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """These tensors of one file, one at a time, so that only one is held outside the model."""
    try:
        with safe_open(file, framework="pt") as shard:
            for name in names:
                yield name, shard.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
