"""Inheritance: files that a recipe extends, and arms that extend the recipe.

Model, engine, hardware and scenario are files of their own; a recipe lists those it is made of and
adds what it changes, and each arm adds what it changes of the recipe. There is one rule for all
four steps:

* two mappings are merged key by key; anything else replaces what was there; ``null`` removes it;
* a flag (``value`` and ``why``) is replaced whole, because another value has another reason;
* a topology is replaced whole, because half a shape is no shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnomon.harness.errors import Problem
from gnomon.harness.recipes.strict_yaml import read_yaml

EXTENDS = "extends"
ARM_KEYS = frozenset(
    {
        *("model", "engine", "hardware", "topology", "kv", "limits", "offload", "speculation"),
        *("concurrency", "evals"),
    }
)
"""Keys of a recipe that every arm inherits and may change."""

_REPLACED_WHOLE = frozenset({"topology"})

Tree = dict[str, Any]


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> Tree:
    """``base`` with ``change`` on top; neither is altered."""
    merged: Tree = dict(base)
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        elif _merges(key, merged.get(key), value):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _merges(key: str, old: object, new: object) -> bool:
    if key in _REPLACED_WHOLE or not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return False
    return not ("value" in new or "value" in old)


def read_tree(source: Path, found: list[Problem], chain: tuple[Path, ...] = ()) -> Tree | None:
    """A recipe's data with everything it extends below it, None where there is none at all.

    Args:
        source: the YAML file.
        found: receives every problem; those of an extended file name it.
        chain: files that led here, to find circles.
    """
    text = read_text(source, found)
    if text is None:
        return None
    data, problems = read_yaml(text)
    inside = f"{source.name}, " if chain else ""
    found.extend(Problem(f"{inside}{p.path}", p.message, p.remedy) for p in problems)
    if not isinstance(data, dict):
        if not problems:
            remedy = "Start with 'name: <identifier>'."
            found.append(Problem(f"{inside}recipe", "the file is not a mapping.", remedy))
        return None
    parents = data.pop(EXTENDS, [])
    if not isinstance(parents, list) or not all(isinstance(item, str) for item in parents):
        found.append(Problem(EXTENDS, f"{parents!r} is not a list of files.", "List their paths."))
        parents = []
    tree: Tree = {}
    here = (*chain, source.resolve())
    for parent in parents:
        path = (source.parent / parent).resolve()
        if path in here:
            found.append(
                Problem(EXTENDS, f"{parent} extends {source.name} again.", "Break the circle.")
            )
            continue
        inherited = read_tree(path, found, here)
        if inherited is not None:
            tree = merge(tree, inherited)
    return merge(tree, data)


def read_text(source: Path, found: list[Problem]) -> str | None:
    """The file's text, or None and a problem."""
    try:
        return source.read_text(encoding="utf-8")
    except OSError as error:
        what = f"{source} cannot be read: {error.strerror}."
        found.append(Problem("recipe", what, "Give the path of a YAML file."))
    except UnicodeDecodeError:
        found.append(Problem("recipe", f"{source} is not UTF-8 text.", "Save the file as UTF-8."))
    return None


def spread_arms(tree: Mapping[str, Any]) -> tuple[Tree, list[Tree]]:
    """Every arm made whole, and what each changed by itself.

    Returns:
        The recipe with whole arms, and the arms as they were written; a recipe without ``arms`` is
        its own only arm and wrote nothing.
    """
    header = {key: value for key, value in tree.items() if key not in ARM_KEYS and key != "arms"}
    shared = {key: value for key, value in tree.items() if key in ARM_KEYS}
    arms = tree.get("arms")
    if arms is None:
        return {**header, "arms": [shared]}, [{}]
    if not isinstance(arms, list) or not all(isinstance(arm, Mapping) for arm in arms):
        return {**header, "arms": arms}, []
    return {**header, "arms": [merge(shared, arm) for arm in arms]}, [dict(arm) for arm in arms]


def written_path(
    path: tuple[int | str, ...], tree: Mapping[str, Any], own: list[Tree]
) -> tuple[int | str, ...]:
    """Where the value at a path of the whole recipe is written, or where it is missing.

    ``("arms", 1, "kv", "layout")`` is ``("kv", "layout")`` unless the arm itself wrote it.

    Args:
        path: of the recipe with whole arms.
        tree: the recipe before its arms were made whole.
        own: what each arm wrote.
    """
    if len(path) < 3 or path[0] != "arms" or not isinstance(path[1], int):
        return path
    position, inside = path[1], path[2:]
    if inside[0] not in ARM_KEYS:
        return path
    arm = own[position] if position < len(own) else {}
    depth = _depth(arm, inside)
    return path if depth and depth >= _depth(tree, inside) else inside


def _depth(tree: object, path: tuple[int | str, ...]) -> int:
    """How many parts of a path lie in a tree; all of them where a part is replaced whole."""
    first = path[0]
    if not isinstance(tree, Mapping) or first not in tree:
        return 0
    below = tree[first]
    if first in _REPLACED_WHOLE or not isinstance(below, Mapping) or "value" in below:
        return len(path)
    return 1 + (_depth(below, path[1:]) if len(path) > 1 else 0)
