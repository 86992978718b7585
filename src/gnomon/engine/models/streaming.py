"""Every tensor of a checkpoint's files into its place, one at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch

from gnomon.engine.errors import CheckpointError
from gnomon.engine.models.matrix import PACKED, Matrix
from gnomon.engine.models.progress import progress
from gnomon.engine.models.quantise import quantise
from gnomon.engine.models.shards import read_tensors
from gnomon.engine.models.stored import Piece, Stored
from gnomon.engine.models.weight_formats import GROUP
from gnomon.engine.options import WeightFormat

Target = tuple[torch.Tensor | Matrix, tuple[slice, ...]]
"""Where a tensor goes, and which part of it: one slice a dim."""


def stream(stored: Mapping[str, Stored], targets: Mapping[str, Target]) -> None:
    """Read every file once, one tensor at a time, into the targets that want it."""
    wanted: dict[Path, dict[str, list[tuple[str, str, Piece]]]] = {}
    for name in targets:
        for role, piece in stored[name].pieces.items():
            users = wanted.setdefault(piece.file, {}).setdefault(piece.stored_name, [])
            users.append((name, role, piece))
    total = sum(stored[name].nbytes for name in targets)
    with progress("loading weights", total) as advance:
        for file, tensors in sorted(wanted.items()):
            for stored_name, tensor in read_tensors(file, list(tensors)):
                for name, role, piece in tensors[stored_name]:
                    part = tensor[piece.index] if piece.index else tensor
                    target, held = targets[name]
                    try:
                        put(target, role, part, held)
                    except ValueError as error:
                        raise CheckpointError(
                            f"{stored_name} of {file.name} cannot be used: {error}"
                        ) from error
                    advance(part.nbytes)
                del tensor, part  # before the next one is read


def put(
    target: torch.Tensor | Matrix,
    role: str,
    tensor: torch.Tensor,
    held: tuple[slice, ...] | None = None,
) -> None:
    """Copy one stored tensor, or the part of it that is held, into its place.

    Args:
        target: a tensor, or a matrix in the stored format or (from a plain source) in another.
        role: "data", "scale", "multiplier" or "divisor".
        tensor: what the file holds.
        held: the part as slices of the tensor's rows and input features; None is all of it.

    Raises:
        ValueError: a scale or factor is NaN or not positive, or a plain source cannot be packed.
    """
    if isinstance(target, torch.Tensor):
        target.copy_(tensor if held is None else tensor[held])
    elif role == "data":
        packed = target.format is not WeightFormat.PLAIN
        if packed and tensor.dtype.is_floating_point and tensor.itemsize > 1:
            made = quantise(tensor.to(target.data.device), target.format)
            if held is not None:
                made = made.rows(held[0].start, held[0].stop)
                made = made.columns(held[1].start, held[1].stop)
            for place, source in zip(target.tensors, made.tensors, strict=True):
                place.copy_(source)
        else:
            per_byte = 2 if target.format in PACKED else 1
            target.data.copy_(_part(tensor, held, per_byte))
    elif role == "scale":
        assert target.scale is not None
        e4m3 = target.scale.dtype is torch.float8_e4m3fn
        tensor = _part(tensor, held, GROUP[target.format])
        codes = tensor.view(torch.uint8)
        if bool(((codes & 0x7F) == 0x7F if e4m3 else codes == 0xFF).any()):
            raise ValueError("it has a scale that is NaN")
        target.scale.copy_(tensor if e4m3 else codes)
    else:
        assert target.row_scale is not None
        factor = float(tensor.reshape(-1)[0])
        if not 0 < factor < math.inf:
            raise ValueError(f"its factor is {factor}; it must be positive and finite")
        target.row_scale.fill_(factor if role == "multiplier" else 1.0 / factor)


def _part(tensor: torch.Tensor, held: tuple[slice, ...] | None, features: int) -> torch.Tensor:
    """Rows and columns of a stored tensor whose columns stand for ``features`` inputs each."""
    if held is None:
        return tensor
    rows, inputs = held
    return tensor[rows, inputs.start // features : -(-inputs.stop // features)]
