"""Quantities with their unit, and values that nobody has published.

A bare number with its unit in the variable's name is how 1024 GB became 1024 GiB (InferenceX #3156
found 7.4 % too much host memory that way). A size in a recipe names its unit and becomes bytes at
once; an adapter converts to what its engine wants at the last moment.
"""

from __future__ import annotations

import re
from decimal import ROUND_FLOOR, Decimal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_UNITS = {
    "B": 1,
    "kB": KB,
    "MB": MB,
    "GB": GB,
    "TB": TB,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": TIB,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")

Unknown = Literal["unknown"]
UNKNOWN: Unknown = "unknown"
"""Written where a fact is not public. It forbids publishing; it is never guessed."""


def parse_bytes(given: object) -> object:
    """``"26 GiB"`` as a number of bytes, rounded down; a plain integer is bytes already.

    Anything else is returned as it is, for the schema to refuse.

    Raises:
        ValueError: a string without a known unit.
    """
    if not isinstance(given, str) or given == UNKNOWN:
        return given
    match = _SIZE.fullmatch(given.strip())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{given!r} is not a size; write a number and one of: {', '.join(_UNITS)}")
    exact = Decimal(match[1]) * _UNITS[match[2]]
    return int(exact.to_integral_value(ROUND_FLOOR))


def gib(size: int) -> str:
    """A size for a sentence: ``31.7 GiB``."""
    return f"{size / GIB:.1f} GiB"


def mib(size: int) -> str:
    """A small size for a sentence: ``96 MiB``."""
    return f"{size / MIB:,.0f} MiB"


def is_unknown(value: Any) -> bool:
    """Whether a value is the mark for a fact that is not public."""
    return isinstance(value, str) and value == UNKNOWN


ByteSize = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0, strict=True)]
MaybeBytes = Annotated[
    Annotated[int, Field(ge=0, strict=True)] | Unknown, BeforeValidator(parse_bytes)
]
