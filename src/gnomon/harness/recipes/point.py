"""A point: one server, with the load or the questions it gets. What a run executes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gnomon.harness.evals.spec import BfclSpec
from gnomon.harness.evidence.verdicts import Scope
from gnomon.harness.recipes.golden import GoldenRow
from gnomon.harness.recipes.quantities import Unknown
from gnomon.harness.recipes.schema import Deadlines, Purpose
from gnomon.harness.recipes.serving import Serving
from gnomon.harness.replay.spec import AgentxScenario, FixedLengthScenario, ReplaySpec

Profile = Literal["load", "eval"]
_COMMENTARY = frozenset({"why", "description", "sources"})
_PRICES = frozenset({"cache", "checkpoint_bytes", "gpu_memory", "outside_budget", "reserve"})
_LABELS = frozenset({"id", "name", "arm", "evals", "deadlines", "scope", "purpose"})


class Forced(BaseModel):
    """An acceptance length the server is told to realise, and where it comes from.

    Attributes:
        length: tokens a step yields on average.
        n: prompts it was measured on.
        interval: 95 %.
        source: public place of the curve.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    length: float
    n: int | Unknown
    interval: tuple[float, float] | Unknown
    source: str

    @classmethod
    def of(cls, row: GoldenRow) -> Forced:
        """The length of a golden curve's point."""
        return cls(length=row.length, n=row.n, interval=row.interval, source=row.source)


class Point(Serving):
    """One server with what it is asked.

    Attributes:
        id: stable name: says arm and concurrency, and ends in a hash of what is measured.
        name: of the recipe.
        arm: of the recipe.
        description: of the recipe.
        scope: how much its numbers may stand for.
        purpose: of the recipe.
        profile: ``load`` may force acceptance, ``eval`` never does.
        concurrency: sessions alive at once, and what the server's limits are sized for.
        forced: acceptance that is forced; always None in an ``eval`` profile.
        dram_bytes: host memory the second tier may use; 0 without one.
        replay: of a generated trace set, or None.
        scenario: the load where it is another kind.
        evals: suites that ask this very server.
        deadlines: of the stages.
        blockers: why its numbers could not be published, whatever they are; empty if they could.
    """

    id: str
    name: str
    arm: str
    description: str
    scope: Scope
    purpose: Purpose = "production"
    profile: Profile = "load"
    concurrency: int = Field(ge=1)
    forced: Forced | None = None
    dram_bytes: int = 0
    replay: ReplaySpec | None = None
    scenario: AgentxScenario | FixedLengthScenario | None = None
    evals: tuple[BfclSpec, ...] = ()
    deadlines: Deadlines = Deadlines()
    blockers: tuple[str, ...] = ()

    @property
    def publishable(self) -> bool:
        """Whether valid numbers of this point may be published."""
        return not self.blockers


def identity(point: Point) -> str:
    """Hash of everything that, if changed, makes it another measurement.

    Names, reasons, deadlines, prices of the memory plan and the evaluations that ride along are
    left out, and so is the rest of the grid: extending a sweep changes no id in it. Golden lengths
    are in: a corrected curve is another measurement.
    """
    data = point.model_dump(mode="json", exclude=set(_LABELS) | {"blockers"})
    return _digest(_measured(data))


def serving_identity(point: Point) -> str:
    """Hash of what is served, however many sessions it gets and whether acceptance is forced.

    An evaluation counts for a load point when these are equal.
    """
    fields = set(Serving.model_fields)
    return _digest(_measured(point.model_dump(mode="json", include=fields)))


def _measured(data: Any) -> Any:
    """Data without sentences, and without what only the memory plan reads.

    A flag's value is kept whole, whatever its keys are called.
    """
    if isinstance(data, Mapping) and data.keys() == {"value", "why"}:
        return {"value": data["value"]}
    if isinstance(data, Mapping):
        ignored = _COMMENTARY | _PRICES
        return {key: _measured(value) for key, value in data.items() if key not in ignored}
    if isinstance(data, list | tuple):
        return [_measured(item) for item in data]
    return data


def _digest(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
