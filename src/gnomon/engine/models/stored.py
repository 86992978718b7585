"""What a checkpoint's files hold: every tensor matched to the model, every matrix's format told.

The format of a matrix follows from the dtypes and shapes of its tensors, never from a name alone:
``weight_scale_inv`` is one byte per 32 inputs in MiniMax-M3-MXFP8 and one float per 128 x 128 block
in DeepSeek's fp8. Names only say which tensors belong together, and whether a tensor-level factor
multiplies (ModelOpt's ``weight_scale_2``) or divides (compressed-tensors' ``weight_global_scale``).
"""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from gnomon.engine.errors import CheckpointError
from gnomon.engine.models.config import ModelConfig
from gnomon.engine.models.shards import TensorHeader
from gnomon.engine.models.tensor_names import Index, is_text_tensor, parts_of_name, plain_name
from gnomon.engine.models.tensors import Shape, tensor_shapes
from gnomon.engine.models.weight_formats import WeightGroup, group_of, groups, width_problem
from gnomon.engine.options import WeightFormat

logger = logging.getLogger(__name__)

FLOAT_DTYPES = ("F32", "F16", "BF16")
_BYTE_SCALES = ("U8", "F8_E8M0")
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1}
_MOST_NAMED = 8  # problems of one kind spelled out in an error

_ROLES = {
    "weight_packed": "data",  # compressed-tensors
    "weight_scale": "scale",  # Quark, ModelOpt, compressed-tensors
    "weight_scale_inv": "scale",  # MiniMax-M3-MXFP8
    "scale": "scale",
    "weight_scale_2": "multiplier",  # ModelOpt
    "weight_global_scale": "divisor",  # compressed-tensors
    "input_scale": "unused",  # of quantised activations: they stay in the compute dtype here
    "input_global_scale": "unused",
    "weight_shape": "unused",
}
_COMPANION = re.compile(rf"(.+)\.({'|'.join(_ROLES)})")
_CACHE_SCALE = re.compile(r".*\.self_attn\.([\w.]+[._])?[kvq]_(scale|zero_point|cache_scale)")


@dataclass(frozen=True)
class Piece:
    """One released tensor inside a tensor of a file.

    Attributes:
        file: where it is.
        stored_name: its name there.
        shape: its shape, after ``index``.
        index: which part of the stored tensor it is; () for all of it.
        dtype: as safetensors names it.
    """

    file: Path
    stored_name: str
    shape: Shape
    index: Index
    dtype: str


@dataclass(frozen=True)
class Stored:
    """One tensor of the model as the files hold it.

    Attributes:
        format: of its numbers.
        pieces: role to piece: "data", and "scale", "multiplier" or "divisor" of packed matrices.
    """

    format: WeightFormat
    pieces: dict[str, Piece]

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces in the files."""
        sizes = (math.prod(p.shape) * _ITEM_BYTES[p.dtype] for p in self.pieces.values())
        return sum(sizes)


@dataclass
class _Found:
    """Tensors of a checkpoint by the released tensor they belong to, and what was wrong."""

    pieces: dict[str, dict[str, Piece]] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    unused: int = 0

    def add(self, name: str, role: str, piece: Piece) -> None:
        roles = self.pieces.setdefault(name, {})
        if role in roles:
            self.twice.append(f"{roles[role].stored_name} and {piece.stored_name} ({role})")
        roles[role] = piece


def locate(headers: dict[str, TensorHeader], config: ModelConfig) -> dict[str, Stored]:
    """Every tensor of the model, by released name, with its format and where it is.

    Raises:
        CheckpointError: naming every missing, unexpected, misshapen or unreadable tensor.
    """
    text = {name: h for name, h in headers.items() if is_text_tensor(name)}
    if len(text) < len(headers):
        logger.info(
            "text only: skipping %d tensors of the vision tower, its projector or built-in drafts",
            len(headers) - len(text),
        )
    expected = tensor_shapes(config)
    found = _sort(text, expected)
    if found.unused:
        logger.info(
            "leaving out %d scales of quantised activations or caches: activations stay in the "
            "compute dtype, and the cache layouts make their own scales",
            found.unused,
        )
    stored: dict[str, Stored] = {}
    missing: list[str] = []
    misshapen: list[str] = []
    unusable: list[str] = []
    for name, shape in expected.items():
        pieces = found.pieces.get(name, {})
        if "data" not in pieces:
            missing.append(name)
            continue
        tensor, problem, kind = _identify(name, shape, pieces)
        if tensor is not None:
            stored[name] = tensor
        else:
            (misshapen if kind == "shape" else unusable).append(problem)
    unusable += _mixed_experts(stored, config)
    problems = [
        *_listing("missing", missing),
        *_listing("unexpected", found.unexpected),
        *_listing("there twice", found.twice),
        *_listing("of the wrong shape for config.json", misshapen),
        *_listing("not in a format that this engine reads", unusable),
    ]
    if problems:
        raise CheckpointError("the checkpoint does not match its config:\n" + "\n".join(problems))
    return stored


def _sort(text: dict[str, TensorHeader], expected: dict[str, Shape]) -> _Found:
    """Give each stored tensor to the released tensor it belongs to."""
    found = _Found()
    for stored_name, header in text.items():
        name = plain_name(stored_name)
        whole = Piece(header.file, stored_name, header.shape, (), header.dtype)
        split = parts_of_name(name, header.shape, expected)
        if split and all(part in expected for part, _, _ in split):
            for part, shape, index in split:
                piece = Piece(header.file, stored_name, shape, index, header.dtype)
                found.add(part, "data", piece)
            continue
        match = _COMPANION.fullmatch(name)
        owner = f"{match[1]}.weight" if match else ""
        if match and owner in expected and group_of(owner) is not WeightGroup.EXACT:
            role = _ROLES[match[2]]
            if role == "unused":
                found.unused += 1
            else:
                found.add(owner, role, whole)
        elif _CACHE_SCALE.fullmatch(name):
            found.unused += 1
        else:
            found.unexpected.append(stored_name)
    return found


def _identify(name: str, shape: Shape, pieces: dict[str, Piece]) -> tuple[Stored | None, str, str]:
    """The stored tensor; or None, what is wrong, and whether it is the "shape" or the "format"."""
    data, scale = pieces["data"], pieces.get("scale")
    told = f"{data.stored_name} gives {name} {list(data.shape)}, not {list(shape)}"
    if data.dtype in FLOAT_DTYPES:
        if data.shape != shape:
            return None, told, "shape"
        if len(pieces) > 1:
            others = ", ".join(p.stored_name for role, p in pieces.items() if role != "data")
            return None, f"{data.stored_name} is {data.dtype}, yet it has {others}", "format"
        return Stored(WeightFormat.PLAIN, pieces), "", ""
    if group_of(name) is WeightGroup.EXACT:
        return None, f"{data.stored_name} is {data.dtype}, not {_either(FLOAT_DTYPES)}", "format"
    if scale is None:
        return None, f"{data.stored_name} is {data.dtype} without a scale", "format"
    rows, width = shape
    for fmt, dtype, packed_width, scale_dtypes in (
        (WeightFormat.MXFP8, "F8_E4M3", width, _BYTE_SCALES),
        (WeightFormat.MXFP4, "U8", width // 2, _BYTE_SCALES),
        (WeightFormat.NVFP4, "U8", width // 2, ("F8_E4M3",)),
    ):
        if data.dtype != dtype or scale.dtype not in scale_dtypes or width_problem(fmt, width):
            continue
        if data.shape != (rows, packed_width):
            return None, told + f" in {fmt.value}", "shape"
        wanted = (rows, groups(width, fmt))
        if scale.shape != wanted:
            problem = f"{scale.stored_name} is {list(scale.shape)}, not {list(wanted)}"
            return None, f"{problem} as {fmt.value} has", "format"
        return _with_factor(fmt, pieces)
    return (
        None,
        f"{data.stored_name} is {data.dtype} {list(data.shape)} with a scale of {scale.dtype} "
        f"{list(scale.shape)}",
        "format",
    )


def _with_factor(fmt: WeightFormat, pieces: dict[str, Piece]) -> tuple[Stored | None, str, str]:
    """A packed matrix with its tensor-level factor: one of NVFP4, none of the others."""
    data = pieces["data"].stored_name
    factors = [pieces[role] for role in ("multiplier", "divisor") if role in pieces]
    wanted = int(fmt is WeightFormat.NVFP4)
    if len(factors) != wanted:
        names = ", ".join(f.stored_name for f in factors) or "no weight_scale_2"
        return None, f"{data} is {fmt.value} with {names}; it must have {wanted} factor", "format"
    for factor in factors:
        if factor.dtype != "F32" or factor.shape not in ((), (1,)):
            problem = f"{factor.stored_name} is {factor.dtype} {list(factor.shape)}"
            return None, f"{problem}, not one F32 number", "format"
    return Stored(fmt, pieces), "", ""


def _mixed_experts(stored: dict[str, Stored], config: ModelConfig) -> list[str]:
    """Layers whose experts differ in format: they are one stacked matrix each."""
    found = []
    for i, layer in enumerate(config.layers):
        if layer.mlp != "moe":
            continue
        prefix = f"model.layers.{i}.block_sparse_moe.experts."
        for kinds in (("w1", "w3"), ("w2",)):
            names = [f"{prefix}{e}.{k}.weight" for e in range(config.num_experts) for k in kinds]
            formats = {stored[name].format.value for name in names if name in stored}
            if len(formats) > 1:
                both = " and ".join(kinds)
                found.append(f"{prefix}*: {both} of one layer are {_either(sorted(formats))}")
    return found


def _either(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names)


def _listing(what: str, items: list[str]) -> list[str]:
    if not items:
        return []
    more = f" and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    plural = "tensor is" if len(items) == 1 else "tensors are"
    return [f"  - {len(items)} {plural} {what}: {'; '.join(items[:_MOST_NAMED])}{more}"]
