"""Following a validation error's location through the schema.

pydantic puts the tag of a union's member into the location of an error inside it
(``engine.gnomon.flags``). A person wrote no such key, so it has to go; and to say which keys there
are, one must know which model describes the place.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, Tag

Location = tuple[int | str, ...]

_KEY = "[key]"


@dataclass(frozen=True)
class Place:
    """Where an error is.

    Attributes:
        path: as a person wrote it, without tags.
        model: that describes the value there, None if it is no model.
        owner: the model whose key the last part of the path is, None if it is no model's.
    """

    path: Location
    model: type[BaseModel] | None
    owner: type[BaseModel] | None


def locate(location: Sequence[int | str], root: type[BaseModel]) -> Place:
    """The place of an error.

    Args:
        location: pydantic's.
        root: model that was validated.
    """
    path: list[int | str] = []
    current: object = root
    owner: type[BaseModel] | None = None
    for part in location:
        if part == _KEY:
            continue  # the key itself is wrong, and it ends the path already
        if isinstance(part, int):
            path.append(part)
            continue  # an item of a list has the list's model
        model = _model_in(current)
        tagged = _tagged(current, part)
        if tagged is not None:
            current = tagged
        elif model is not None and part in model.model_fields:
            path.append(part)
            owner, current = model, model.model_fields[part].annotation
        elif model is not None or _is_mapping(current):
            path.append(part)
            owner, current = model, _value_type(current)
        # Anything else is pydantic's name for a way in which a plain value could be right.
    return Place(tuple(path), _model_in(current), owner)


def _members(annotation: object) -> Iterator[object]:
    """The alternatives of an annotation, each with its own metadata, outermost ones opened."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        inner, *rest = typing.get_args(annotation)
        if any(isinstance(item, Tag) for item in rest):
            yield annotation
        else:
            yield from _members(inner)
    elif origin in (typing.Union, types.UnionType, tuple):
        for argument in typing.get_args(annotation):
            yield from _members(argument)
    else:
        yield annotation


def _tagged(annotation: object, part: str) -> object | None:
    """The member of a union whose tag is ``part``."""
    members = list(_members(annotation))
    if len(members) < 2:
        return None
    for member in members:
        if typing.get_origin(member) is typing.Annotated:
            inner, *rest = typing.get_args(member)
            if any(isinstance(item, Tag) and item.tag == part for item in rest):
                return typing.cast(object, inner)
        elif _is_model(member):
            for name in ("name", "kind"):
                field = member.model_fields.get(name)  # type: ignore[attr-defined]
                if field is not None and part in typing.get_args(field.annotation):
                    return member
    return None


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The first model among the alternatives."""
    for member in _members(annotation):
        inner = member
        if typing.get_origin(member) is typing.Annotated:
            inner = typing.get_args(member)[0]
        if _is_model(inner):
            return typing.cast(type[BaseModel], inner)
        if typing.get_origin(inner) in (typing.Union, types.UnionType, tuple):
            found = _model_in(inner)
            if found is not None:
                return found
    return None


def _is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _is_mapping(annotation: object) -> bool:
    return any(
        isinstance(origin, type) and issubclass(origin, Mapping)
        for member in _members(annotation)
        for origin in (typing.get_origin(member),)
    )


def _value_type(annotation: object) -> object:
    for member in _members(annotation):
        origin = typing.get_origin(member)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return typing.cast(object, typing.get_args(member)[1])
    return None
