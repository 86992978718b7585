"""JSON schemas as data: what a value may be, with every keyword resolved or refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gnomon.engine.grammar.numbers import Bounds
from gnomon.engine.grammar.regex import Pattern


@dataclass(frozen=True)
class Values:
    """One of some JSON values; ``word`` is the keyword that said so, for errors."""

    values: tuple[Any, ...]
    word: str = field(default="enum", compare=False)


@dataclass(frozen=True)
class Text:
    """A string."""

    shortest: int = 0
    longest: int | None = None
    pattern: Pattern | None = None
    is_format: bool = False

    @property
    def free(self) -> bool:
        """Whether any string will do."""
        return self.shortest == 0 and self.longest is None and self.pattern is None


@dataclass(frozen=True)
class Number:
    """An integer or a number."""

    whole: bool
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(frozen=True)
class Simple:
    """``null`` or a boolean."""

    name: str


@dataclass(frozen=True)
class Array:
    """An array: members by position, then any number of others."""

    prefix: tuple[Node, ...]
    items: Node | None
    least: int
    most: int | None


@dataclass(frozen=True)
class Subset:
    """An array of some distinct values, in their order."""

    values: tuple[Any, ...]
    least: int
    most: int | None


@dataclass(frozen=True)
class Member:
    """A declared member of an object."""

    name: str
    node: Node
    required: bool


@dataclass(frozen=True)
class Object:
    """An object. ``extra`` is the schema of undeclared members, only where none is declared."""

    members: tuple[Member, ...]
    extra: Node | None
    least: int = 0
    most: int | None = None
    plain: bool = True  # nothing was merged into it, so its members can be typed one by one


@dataclass(frozen=True)
class OneOf:
    """Any of some alternatives."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Anything:
    """Any JSON value."""


@dataclass(frozen=True)
class Reference:
    """A schema that leads back to itself; look it up by its name."""

    name: str


Node = Values | Text | Number | Simple | Array | Subset | Object | OneOf | Anything | Reference
