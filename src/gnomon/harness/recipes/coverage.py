"""Which arms are asked questions, and by suites of which scope.

A published number stands beside the quality of what was served, so every published arm needs an
evaluation of the same serving plan: the same topology, caches, tier, draft, image and flags. Only a
suite of full scope counts: a few cases prove that the path works, not how well it answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnomon.harness.evals.manifest import load_manifest
from gnomon.harness.recipes.schema import Arm


@dataclass(frozen=True)
class Coverage:
    """What asks one arm.

    Attributes:
        arm: its name.
        full: suites of full scope, each with its API.
        partial: the other suites.
    """

    arm: str
    full: tuple[str, ...]
    partial: tuple[str, ...]

    @property
    def gap(self) -> str | None:
        """Why nothing of this arm may be published for want of an evaluation; None if it may."""
        if self.full:
            return None
        if self.partial:
            asked = ", ".join(self.partial)
            return f"arm {self.arm}: its serving plan is asked by no full suite, only {asked}"
        return f"arm {self.arm}: no evaluation asks its serving plan"


def coverage_of(arm: Arm) -> Coverage:
    """What asks an arm, by the scope of each suite's manifest."""
    full: list[str] = []
    partial: list[str] = []
    for spec in arm.evals:
        named = f"{spec.suite} through {spec.api}"
        (full if load_manifest(spec.suite).scope == "full" else partial).append(named)
    return Coverage(arm.name, tuple(full), tuple(partial))
