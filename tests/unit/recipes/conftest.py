"""A production recipe as data, and how to expand what a test changes of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnomon.harness.errors import Problem
from gnomon.harness.recipes.expand import Expansion, Selection, Tables, expand
from gnomon.harness.recipes.golden import load_golden
from gnomon.harness.recipes.merge import merge, read_tree, spread_arms
from gnomon.harness.recipes.schema import Recipe

RECIPES = Path(__file__).parents[3] / "recipes"

Expand = Callable[..., Expansion]


def tree_of(name: str) -> dict[str, Any]:
    found: list[Problem] = []
    tree = read_tree(RECIPES / f"{name}.yaml", found)
    assert tree is not None
    assert not found
    return tree


@pytest.fixture(scope="session")
def golden() -> Any:
    return load_golden(RECIPES / "golden")


@pytest.fixture
def expanded(golden: Any) -> Expand:
    """Expands a shipped recipe (H100 of #2423 by default) with a change merged on top."""

    def make(
        change: dict[str, Any] | None = None,
        name: str = "minimax-m3-h100-vllm-2423",
        selection: Selection | None = None,
    ) -> Expansion:
        tree = merge(copy.deepcopy(tree_of(name)), change or {})
        recipe = Recipe.model_validate(spread_arms(tree)[0])
        return expand(recipe, Tables(golden=golden), selection)

    return make
