"""Reading typed fields out of a config.json, collecting every problem instead of the first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_ABSENT = object()


class FieldReader:
    """Reads fields that may be spelled in several ways.

    A reader returns a harmless placeholder when a field is missing or wrong and notes the problem,
    so that one error can name everything. :meth:`ok` guards checks that span several fields.

    Args:
        *scopes: mappings to look in, the most specific first. ``a.b`` in a spelling is a nested
            key. A key whose value is null counts as absent.
    """

    def __init__(self, *scopes: Mapping[str, Any]) -> None:
        self.scopes = scopes
        self.problems: list[str] = []
        self._bad: set[str] = set()

    def problem(self, message: str, *fields: str) -> None:
        """Note a problem, and that these fields cannot be trusted."""
        self.problems.append(message)
        self._bad.update(fields)

    def ok(self, *fields: str) -> bool:
        """Whether none of these fields (by first spelling) had a problem."""
        return not self._bad.intersection(fields)

    def find(self, spelling: str) -> Any:
        """Value of one spelling in the first scope that has it, else None."""
        for scope in self.scopes:
            value: Any = scope
            for part in spelling.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None:
                return value
        return None

    def raw(self, *spellings: str, default: Any = _ABSENT) -> Any:
        """Value of a field, whichever way it is spelled; spellings that disagree are a problem."""
        given = {s: v for s in spellings if (v := self.find(s)) is not None}
        name = spellings[0]
        if not given:
            if default is _ABSENT:
                also = f" (also spelled {', '.join(spellings[1:])})" if spellings[1:] else ""
                self.problem(f"{name}{also} is missing", name)
                return None
            return default
        values = list(given.values())
        if any(v != values[0] for v in values[1:]):
            pairs = " but ".join(f"{s} is {v!r}" for s, v in given.items())
            self.problem(f"{pairs}: they must agree", name)
            return None
        return values[0]

    def integer(
        self,
        *spellings: str,
        default: Any = _ABSENT,
        minimum: int = 1,
        maximum: int = 1 << 40,
    ) -> int:
        """An integer from ``minimum`` to ``maximum``."""
        value = self.raw(*spellings, default=default)
        if value is None:
            return minimum
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not minimum <= value <= maximum:
            self.problem(
                f"{spellings[0]} is {value!r}; it must be an integer from {minimum} to {maximum}",
                spellings[0],
            )
            return minimum
        return int(value)

    def number(self, *spellings: str, default: Any = _ABSENT) -> float:
        """A positive, finite number."""
        value = self.raw(*spellings, default=default)
        if value is None:
            return 1.0
        number_like = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number_like or not math.isfinite(value) or value <= 0:
            self.problem(f"{spellings[0]} is {value!r}; it must be a positive number", spellings[0])
            return 1.0
        return float(value)

    def flags(
        self,
        spelling: str,
        other: str,
        names: Mapping[str, bool],
        length: int,
    ) -> tuple[bool, ...]:
        """A per-layer list: 0/1 under ``spelling``, or the keys of ``names`` under ``other``."""
        plain = self._flag_list(spelling, {0: False, 1: True}, length)
        named = self._flag_list(other, names, length)
        if plain is None and named is None:
            if self.ok(spelling, other):
                self.problem(f"{spelling} (also spelled {other}) is missing", spelling)
            return (False,) * length
        if plain is not None and named is not None and plain != named:
            layers = [i for i, (a, b) in enumerate(zip(plain, named, strict=True)) if a != b]
            self.problem(f"{spelling} and {other} disagree at layers {layers}", spelling)
        result = plain if plain is not None else named
        assert result is not None
        return result

    def _flag_list(
        self, spelling: str, meaning: Mapping[Any, bool], length: int
    ) -> tuple[bool, ...] | None:
        value = self.find(spelling)
        if value is None:
            return None
        if not isinstance(value, list):
            self.problem(f"{spelling} is {value!r}; it must be a list, one entry a layer", spelling)
            return None
        if len(value) != length and self.ok("num_hidden_layers"):
            self.problem(
                f"{spelling} has {len(value)} entries for num_hidden_layers {length}", spelling
            )
            return None
        unknown = [v for v in value if not isinstance(v, (str, int)) or v not in meaning]
        if unknown:
            allowed = ", ".join(str(k) for k in meaning)
            self.problem(f"{spelling} contains {unknown[0]!r}; allowed are {allowed}", spelling)
            return None
        return tuple(meaning[v] for v in value)
