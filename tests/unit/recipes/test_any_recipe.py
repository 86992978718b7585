"""Whatever a file says, it is a recipe that expands or one that is refused with its problems."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.recipes.conftest import tree_of

from gnomon.harness.errors import RecipeRefused
from gnomon.harness.recipes.expand import Tables, expand, explain
from gnomon.harness.recipes.load import load_recipe
from gnomon.harness.recipes.schema import Recipe
from gnomon.harness.sweep import commands, deploy

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**40),
    st.floats(allow_nan=False),
    st.sampled_from(["", "none", "unknown", "fp8", "mxfp4", "26 GiB", "tp8", "x y"]),
    st.lists(st.integers(-2, 9), max_size=3),
    st.dictionaries(st.sampled_from(["value", "why", "tp", "name", "kind", "z"]), st.integers()),
)
NAMES = [
    "minimax-m3-h100-vllm-2423",
    "gnomon-layouts",
    "kimi-k3-b300-vllm",
    "minimax-m3-b300-trtllm",
    "minimax-m3-mi355x-atom",
    "probes/minimax-m3-gb200-dynamo",
]


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path of a tree, inner ones too."""
    items: list[tuple[Any, Any]] = []
    if isinstance(tree, dict):
        items = list(tree.items())
    elif isinstance(tree, list):
        items = list(enumerate(tree))
    below = [place for key, value in items for place in places(value, (*path, key))]
    return ([path] if path else []) + below


def put(tree: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value


def loaded_or_refused(source: Path) -> Recipe | RecipeRefused:
    try:
        return load_recipe(source).recipe
    except RecipeRefused as refusal:
        return refusal


@pytest.fixture(scope="module")
def trees() -> dict[str, Any]:
    return {name: tree_of(name) for name in NAMES}


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(name=st.sampled_from(NAMES), seed=st.integers(0, 2**32), junk=st.lists(JUNK, max_size=3))
def test_a_recipe_with_anything_anywhere_expands_or_is_refused(
    name: str, seed: int, junk: list[Any], trees: dict[str, Any], tmp_path: Path, golden: Any
) -> None:
    tree = copy.deepcopy(trees[name])
    rng = random.Random(seed)
    for value in junk:
        put(tree, rng.choice(places(tree)), value)
    source = tmp_path / "recipe.yaml"
    source.write_text(yaml.safe_dump(tree))
    found = loaded_or_refused(source)
    if isinstance(found, RecipeRefused):
        assert found.problems
        assert all(problem.path and problem.message for problem in found.problems)
        return
    expansion = expand(found, Tables(golden=golden))
    for planned in (*expansion.points, *expansion.evaluations):
        assert explain(planned)
        if not planned.refused:
            assert commands(planned.point, deploy(planned.point))
