"""What every shipped recipe renders to; ``python -m tests.unit.adapters.rendered`` writes it.

One file a recipe: the smallest and the largest point of each arm, and each evaluation. Read the
difference of a golden file as what a change would start on a machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gnomon.harness.recipes.expand import Expansion, Planned, Tables, expand
from gnomon.harness.recipes.load import load_recipe
from gnomon.harness.sweep import commands, deploy

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parent / "golden"
RECIPES = tuple(sorted([*ROOT.glob("recipes/*.yaml"), *ROOT.glob("recipes/probes/*.yaml")]))


READ_BACK = ("# read back", "#   ")


def expansion_of(recipe: Path) -> Expansion:
    loaded = load_recipe(recipe)
    return expand(loaded.recipe, Tables(golden=loaded.golden))


def shown(expansion: Expansion) -> list[Planned]:
    """Both ends of each arm's grid, and the evaluations; refused ones are shown as well."""
    by_arm: dict[str, list[Planned]] = {}
    for planned in expansion.points:
        by_arm.setdefault(planned.point.arm, []).append(planned)
    ends = [planned for arm in by_arm.values() for planned in (arm[:1] + arm[-1:])[: len(arm)]]
    return [*ends, *expansion.evaluations]


def text_of(recipe: Path) -> str:
    """The golden text of one recipe; the interpreter's place on disk is no part of it."""
    parts = []
    for planned in shown(expansion_of(recipe)):
        lines = commands(planned.point, deploy(planned.point))
        kept = [line for line in lines if not line.startswith(READ_BACK)]
        parts.append("\n".join(kept).replace(sys.executable, "python"))
    return "\n\n\n".join(parts) + "\n"


if __name__ == "__main__":
    for source in RECIPES:
        (GOLDEN / f"{source.stem}.txt").write_text(text_of(source))
