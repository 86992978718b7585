"""Turning validation errors into problems a person can act on."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from gnomon.harness.errors import Problem
from gnomon.harness.recipes.schema import Flag


def dotted(location: Sequence[int | str]) -> str:
    """``("evals", 0, "api")`` as ``evals[0].api``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "recipe"


def problems_of(error: ValidationError, root: type[BaseModel]) -> list[Problem]:
    """Every fault of a validation error, each with what to change."""
    return [_problem(dict(fault), root) for fault in error.errors(include_url=False)]


def _problem(fault: dict[str, Any], root: type[BaseModel]) -> Problem:
    location: tuple[int | str, ...] = fault["loc"]
    path, given = dotted(location), fault["input"]
    kind = fault["type"]
    if kind == "extra_forbidden":
        return _unknown_key(location, root)
    if kind == "missing":
        owner = dotted(location[:-1])
        what = "needs a reason" if location[-1] == "why" else f"needs {location[-1]!r}"
        remedy = (
            "Say in a sentence what would be different without this flag."
            if location[-1] == "why"
            else f"Add {location[-1]!r} to {owner}."
        )
        return Problem(path, f"{owner} {what}, which is missing.", remedy)
    if kind == "literal_error" or kind == "enum":
        return _unknown_value(path, given, _choices(fault))
    if kind == "model_type":
        return _wrong_shape(path, given, _model_at(location, root))
    message = str(fault["msg"]).removeprefix("Value error, ")
    if kind == "value_error":
        return Problem(path, message, "")
    return Problem(path, f"{given!r} is not accepted: {_lower_first(message)}.", "Correct it.")


def _unknown_key(location: tuple[int | str, ...], root: type[BaseModel]) -> Problem:
    key = str(location[-1])
    owner = _model_at(location[:-1], root)
    known = sorted(owner.model_fields) if owner is not None else []
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    remedy = f"Did you mean {nearest[0]!r}? " if nearest else ""
    return Problem(
        dotted(location),
        f"unknown key {key!r}.",
        f"{remedy}Remove it, or use one of: {', '.join(known)}.",
    )


def _unknown_value(path: str, given: object, choices: Sequence[str]) -> Problem:
    what = "layout" if "cache_dtype" in path else "value"
    nearest = difflib.get_close_matches(str(given), choices, n=1, cutoff=0.5)
    hint = f"Did you mean {nearest[0]!r}? " if nearest else ""
    return Problem(
        path, f"unknown {what} {given!r}.", f"{hint}Choose one of: {', '.join(choices)}."
    )


def _choices(fault: dict[str, Any]) -> list[str]:
    expected = str(fault.get("ctx", {}).get("expected", ""))
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


def _model_at(location: Sequence[int | str], root: type[BaseModel]) -> type[BaseModel] | None:
    """The model that describes the value at a location, following fields and list items."""
    current: type[BaseModel] | None = root
    for part in location:
        if isinstance(part, int):
            continue  # an item of a list has the list's model
        if current is None or part not in current.model_fields:
            return None
        current = _model_in(current.model_fields[part].annotation)
    return current


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, tuple, typing.Annotated):
        for argument in typing.get_args(annotation):
            found = _model_in(argument)
            if found is not None:
                return found
    return None


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
