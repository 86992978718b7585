"""Turning validation errors into problems a person can act on."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from gnomon.harness.errors import Problem
from gnomon.harness.recipes.flags import Flag
from gnomon.harness.recipes.locate import Location, locate
from gnomon.harness.recipes.merge import ARM_KEYS, EXTENDS
from gnomon.harness.recipes.schema import Recipe


def dotted(location: Sequence[int | str]) -> str:
    """``("evals", 0, "api")`` as ``evals[0].api``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "recipe"


@dataclass(frozen=True)
class _Fault:
    """One validation error, at its place in the file."""

    kind: str
    path: Location
    written: str
    model: type[BaseModel] | None
    owner: type[BaseModel] | None
    given: object
    message: str
    context: Mapping[str, Any]

    @property
    def known_keys(self) -> set[str]:
        """Keys that the mapping around the fault may have."""
        if self.owner is None:
            return set()
        shared = ARM_KEYS | {EXTENDS} if self.owner is Recipe else set()
        return set(self.owner.model_fields) | shared


def problems_of(
    error: ValidationError,
    root: type[BaseModel],
    written: Callable[[Location], Location] = lambda path: path,
) -> list[Problem]:
    """Every fault of a validation error, each with what to change.

    Args:
        error: of the whole recipe.
        root: its model.
        written: from a place in the validated data to the place in the file.
    """
    problems: dict[str, Problem] = {}
    for raw in error.errors(include_url=False):
        place = locate(raw["loc"], root)
        fault = _Fault(
            kind=raw["type"],
            path=place.path,
            written=dotted(written(place.path)),
            model=place.model,
            owner=place.owner,
            given=raw["input"],
            message=str(raw["msg"]).removeprefix("Value error, "),
            context=raw.get("ctx", {}),
        )
        problem = _problem(fault, written)
        problems.setdefault(problem.path, problem)  # a union names one fault once for each member
    return list(problems.values())


def _problem(fault: _Fault, written: Callable[[Location], Location]) -> Problem:
    path, given = fault.written, fault.given
    if fault.kind == "extra_forbidden":
        return _unknown_key(fault)
    if fault.kind == "missing":
        return _missing(fault, dotted(written(fault.path[:-1])))
    if fault.kind in ("literal_error", "enum"):
        return _unknown_value(path, given, _choices(str(fault.context.get("expected", ""))))
    if fault.kind == "union_tag_invalid":
        key = str(fault.context.get("discriminator", "")).strip("'")
        tags = _choices(str(fault.context.get("expected_tags", "")))
        return _unknown_value(f"{path}.{key}", fault.context.get("tag"), tags)
    if fault.kind == "union_tag_not_found":
        key = str(fault.context.get("discriminator", "")).strip("'")
        return Problem(
            f"{path}.{key}", f"{path} needs {key!r}, which is missing.", f"Add {key!r} to {path}."
        )
    if fault.kind in ("model_type", "model_attributes_type"):
        return _wrong_shape(path, given, fault.model)
    if fault.kind == "value_error":
        return Problem(path, _sentence(fault.message), "")
    return Problem(
        path, f"{given!r} is not accepted: {_lower_first(fault.message)}.", "Correct it."
    )


def _missing(fault: _Fault, owner: str) -> Problem:
    name = fault.path[-1]
    if name == "why":
        return Problem(
            fault.written,
            f"{owner} needs a reason, which is missing.",
            "Say in a sentence what would be different without this flag.",
        )
    return Problem(
        fault.written, f"{owner} needs {name!r}, which is missing.", f"Add {name!r} to {owner}."
    )


def _unknown_key(fault: _Fault) -> Problem:
    key = str(fault.path[-1])
    known = sorted(fault.known_keys)
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    remedy = f"Did you mean {nearest[0]!r}? " if nearest else ""
    return Problem(
        fault.written,
        f"unknown key {key!r}.",
        f"{remedy}Remove it, or use one of: {', '.join(known)}.",
    )


def _unknown_value(path: str, given: object, choices: Sequence[str]) -> Problem:
    what = "layout" if path.endswith("layout.value") else "value"
    nearest = difflib.get_close_matches(str(given), choices, n=1, cutoff=0.5)
    hint = f"Did you mean {nearest[0]!r}? " if nearest else ""
    return Problem(
        path, f"unknown {what} {given!r}.", f"{hint}Choose one of: {', '.join(choices)}."
    )


def _choices(expected: str) -> list[str]:
    return [part.strip(" '") for part in expected.replace(" or ", ", ").split(",") if part.strip()]


def _wrong_shape(path: str, given: object, model: type[BaseModel] | None) -> Problem:
    if model is not None and issubclass(model, Flag):
        return Problem(
            path,
            f"{given!r} has no reason: every flag states why it is set.",
            f"Write it as two keys, value: {given} and why: <one sentence>.",
        )
    keys = ", ".join(model.model_fields) if model is not None else "its keys"
    return Problem(path, f"{given!r} is not a mapping.", f"Write it as a mapping with {keys}.")


def _sentence(text: str) -> str:
    return f"{text[:1].lower()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
