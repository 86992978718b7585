"""The recipes that come with the project."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.adapters.rendered import RECIPES, expansion_of

PRODUCTION = [path for path in RECIPES if path.parent.name == "recipes"]
IMPOSSIBLE = {"minimax-m3-b200-tp2", "minimax-m3-h100-095"}
POINTS = {
    "gnomon-layouts": 8,
    "kimi-k3-b300-vllm": 11,
    "kimi-k3-mi355x-atom": 4,
    "kimi-k3-mi355x-vllm": 4,
    "minimax-m3-b200-trtllm": 11,
    "minimax-m3-b200-vllm": 11,
    "minimax-m3-b300-trtllm": 11,
    "minimax-m3-b300-vllm": 8,
    "minimax-m3-h100-vllm": 7,
    "minimax-m3-h100-vllm-2423": 18,
    "minimax-m3-h200-vllm": 8,
    "minimax-m3-mi300x-vllm": 6,
    "minimax-m3-mi325x-vllm": 9,
    "minimax-m3-mi355x-atom": 15,
    "minimax-m3-mi355x-vllm": 17,
    "quickstart": 1,
}


def test_the_production_grid_is_what_it_was() -> None:
    assert {path.stem: len(expansion_of(path).standing) for path in PRODUCTION} == POINTS


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_is_refused_only_where_it_asks_the_impossible(recipe: Path) -> None:
    expansion = expansion_of(recipe)
    assert bool(expansion.refused) == (recipe.stem in IMPOSSIBLE)
    assert expansion.recipe.name == recipe.stem


def test_no_two_points_of_all_recipes_have_one_hash() -> None:
    """A probe that repeated a production point would be measured under two names."""
    hashes = [
        planned.point.id.rpartition("-")[2]
        for path in RECIPES
        for planned in expansion_of(path).points
    ]
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_what_is_not_public_says_so_and_nothing_is_published_on_it(recipe: Path) -> None:
    for planned in expansion_of(recipe).points:
        assert not planned.point.publishable


def test_acceptance_lengths_are_looked_up_and_written_in_no_recipe() -> None:
    for path in Path(PRODUCTION[0]).parent.rglob("*.yaml"):
        if path.parent.name != "golden":
            text = path.read_text()
            assert "acceptance_length" not in text
            assert "2.78" not in text
            assert "2.83" not in text
