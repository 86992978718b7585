"""From a recipe to its points: one pure function, used by every command.

A filter selects points and never changes one. What is not run has a reason, whether a filter
dropped it or a rule refused it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gnomon.harness.adapters.catalogue import ADAPTERS
from gnomon.harness.adapters.protocol import EngineAdapter, Ports
from gnomon.harness.errors import Problem
from gnomon.harness.nouns import ServerAddress
from gnomon.harness.recipes.capabilities import Capabilities
from gnomon.harness.recipes.coverage import Coverage, coverage_of
from gnomon.harness.recipes.dram import dram_budget
from gnomon.harness.recipes.golden import GoldenRow, GoldenTable
from gnomon.harness.recipes.memory import MemoryVerdict, plan_memory, summary
from gnomon.harness.recipes.point import Forced, Point, Profile, identity, serving_identity
from gnomon.harness.recipes.policy import blockers, broken_rules
from gnomon.harness.recipes.schema import Arm, Recipe
from gnomon.harness.recipes.serving import Serving
from gnomon.harness.replay.spec import AgenticScenario, ReplaySpec

_ID_DIGITS = 8


@dataclass(frozen=True)
class Selection:
    """Which points to keep; an empty field keeps all.

    Attributes:
        arms: names.
        concurrencies: sessions.
        ids: point ids, or beginnings of them (see `is_named`).
    """

    arms: tuple[str, ...] = ()
    concurrencies: tuple[int, ...] = ()
    ids: tuple[str, ...] = ()

    def why_not(self, point: Point) -> str | None:
        """Why a point is not selected, None if it is."""
        if self.arms and point.arm not in self.arms:
            return f"the filter keeps the arms {', '.join(self.arms)}"
        if self.concurrencies and point.concurrency not in self.concurrencies:
            kept = ", ".join(map(str, self.concurrencies))
            return f"the filter keeps the concurrencies {kept}"
        if self.ids and not any(is_named(point, wanted) for wanted in self.ids):
            return f"the filter keeps the points {', '.join(self.ids)}"
        return None


def is_named(point: Point, wanted: str) -> bool:
    """Whether ``wanted`` is a point's id or a whole beginning of it: ``tp8-c1`` is not ``tp8-c12``.

    Args:
        point: it.
        wanted: an id, with as much of its hash as one likes, or some of the words before it.
    """
    words = point.id.rpartition("-")[0]
    if len(wanted) > len(words):
        return point.id.startswith(wanted)
    return words == wanted or words.startswith(f"{wanted}-")


@dataclass(frozen=True)
class Planned:
    """A point with everything that was found about it.

    Attributes:
        point: as it would run.
        because: why it exists.
        memory: what the planner says.
        refused: why it cannot run; empty if it can.
        dropped: why the filter left it out, None if it did not.
    """

    point: Point
    because: str
    memory: MemoryVerdict
    refused: tuple[Problem, ...] = ()
    dropped: str | None = None

    @property
    def stands(self) -> bool:
        """Whether it is to be run."""
        return not self.refused and self.dropped is None


@dataclass(frozen=True)
class Expansion:
    """Everything a recipe stands for.

    Attributes:
        recipe: it.
        points: one for each arm and concurrency, in the order of the recipe.
        evaluations: one more server for each arm that forces acceptance under load and is
            evaluated, and for each evaluated arm without load.
        coverage: what asks each arm that has points.
        unmatched: parts of the filter that fit nothing.
    """

    recipe: Recipe
    points: tuple[Planned, ...]
    evaluations: tuple[Planned, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    unmatched: tuple[str, ...] = ()

    @property
    def standing(self) -> tuple[Planned, ...]:
        """Points to be run."""
        return tuple(planned for planned in self.points if planned.stands)

    @property
    def gaps(self) -> tuple[str, ...]:
        """Arms that cannot be published for want of an evaluation, each with the reason."""
        return tuple(found.gap for found in self.coverage if found.gap is not None)

    @property
    def refused(self) -> tuple[Planned, ...]:
        """Points and evaluations that were selected and cannot run."""
        everything = (*self.points, *self.evaluations)
        return tuple(p for p in everything if p.refused and p.dropped is None)


@dataclass(frozen=True)
class Tables:
    """Data that expansion looks things up in.

    Attributes:
        golden: acceptance curves.
        capabilities: what is known to work.
        adapters: engines by name.
    """

    golden: GoldenTable = field(default_factory=GoldenTable)
    capabilities: Capabilities = field(default_factory=Capabilities.shipped)
    adapters: Mapping[str, EngineAdapter] = field(default_factory=lambda: ADAPTERS)


def expand(
    recipe: Recipe, tables: Tables | None = None, selection: Selection | None = None
) -> Expansion:
    """Every point of a recipe, every evaluation, and the reason of each.

    Args:
        recipe: read and valid.
        tables: data to look up; the shipped ones without golden curves by default.
        selection: which points to keep.
    """
    tables = tables or Tables()
    selection = selection or Selection()
    points: list[Planned] = []
    evaluations: list[Planned] = []
    coverage: list[Coverage] = []
    for arm in recipe.arms:
        own = [_point(recipe, arm, value, "load", tables) for value in arm.concurrencies]
        if arm.evals and (not own or _forces(arm)):
            largest = max(arm.concurrencies, default=_questions_at_once(arm))
            evaluations.append(_point(recipe, arm, largest, "eval", tables))
        elif arm.evals:
            own[-1] = _riding(own[-1], arm)
        if own:
            coverage.append(coverage_of(arm))
        points.extend(own)
    return Expansion(
        recipe=recipe,
        points=_selected(points, selection),
        evaluations=_selected(evaluations, selection),
        coverage=tuple(coverage),
        unmatched=_unmatched([*points, *evaluations], selection),
    )


def _forces(arm: Arm) -> bool:
    return arm.drafted is not None and arm.drafted.acceptance == "golden"


def _questions_at_once(arm: Arm) -> int:
    """Sessions an arm without load is sized for: what its suites ask at the same time."""
    return max(spec.threads for spec in arm.evals)


def _riding(planned: Planned, arm: Arm) -> Planned:
    """The arm's largest point also asks the suites: its server verifies for real anyway."""
    point = planned.point.model_copy(update={"evals": arm.evals})
    because = f"{planned.because}; asks {_suites(arm)} as the arm's largest point"
    return Planned(point, because, planned.memory, planned.refused, planned.dropped)


def _suites(arm: Arm) -> str:
    return ", ".join(f"{spec.suite} through {spec.api}" for spec in arm.evals)


def _point(recipe: Recipe, arm: Arm, concurrency: int, profile: Profile, tables: Tables) -> Planned:
    problems: list[Problem] = []
    row = _golden(arm, tables, problems)
    serving = {name: getattr(arm, name) for name in Serving.model_fields}
    scenario = recipe.scenario if profile == "load" else None
    point = Point(
        **serving,
        id="",
        name=recipe.name,
        arm=arm.name,
        description=recipe.description,
        scope=recipe.scope,
        purpose=recipe.purpose,
        profile=profile,
        concurrency=concurrency,
        forced=Forced.of(row) if row is not None and profile == "load" else None,
        dram_bytes=_dram(arm, problems),
        replay=_replay(scenario, concurrency),
        scenario=None if isinstance(scenario, AgenticScenario) else scenario,
        evals=arm.evals if profile == "eval" else (),
        deadlines=recipe.deadlines,
    )
    adapter = tables.adapters[arm.engine.name]
    memory = plan_memory(point, adapter.pool_rule(point), concurrency)
    if memory.state == "refused":
        problems.extend(Problem("memory", f"{reason}.", "") for reason in memory.reasons)
    problems.extend(tables.capabilities.refusals(point))
    problems.extend(adapter.refusals(point))
    problems.extend(broken_rules(point))
    if not problems:
        problems.extend(_unrenderable(point, adapter))
    word = f"c{concurrency}" if profile == "load" else "eval"
    update = {
        "id": f"{arm.name}-{word}-{identity(point)[:_ID_DIGITS]}",
        "blockers": blockers(point, row, memory, coverage_of(arm).gap),
    }
    return Planned(
        point=point.model_copy(update=update),
        because=_because(arm, concurrency, profile),
        memory=memory,
        refused=tuple(problems),
    )


def _unrenderable(point: Point, adapter: EngineAdapter) -> list[Problem]:
    """What only rendering finds: a budget too small to be shared, a tier the engine lacks."""
    try:
        adapter.deploy(point, ServerAddress("127.0.0.1", 0, point.model.served_name), Ports(0))
    except ValueError as error:
        return [Problem("engine", f"cannot be started as asked: {error}.", "")]
    return []


def _because(arm: Arm, concurrency: int, profile: Profile) -> str:
    reason = f": {arm.why}" if arm.why is not None else ""
    if profile == "eval":
        return (
            f"{_suites(arm)} must ask the serving plan of arm {arm.name} with real verification; "
            f"sized like its point of {concurrency} sessions"
        )
    return f"arm {arm.name} lists concurrency {concurrency}{reason}"


def _replay(scenario: object, concurrency: int) -> ReplaySpec | None:
    if not isinstance(scenario, AgenticScenario):
        return None
    return ReplaySpec(**{**dict(scenario), "concurrency": concurrency})


def _golden(arm: Arm, tables: Tables, problems: list[Problem]) -> GoldenRow | None:
    drafted = arm.drafted
    if drafted is None or drafted.acceptance != "golden":
        return None
    found = tables.golden.find(arm.model.family, drafted)
    if isinstance(found, Problem):
        problems.append(found)
        return None
    return found


def _dram(arm: Arm, problems: list[Problem]) -> int:
    tier = arm.tier
    if tier is None:
        return 0
    try:
        return dram_budget(arm.hardware, arm.topology, tier.dram_share)
    except ValueError as error:
        problems.append(Problem("offload.dram_share", f"{error}.", ""))
        return 0


def _selected(found: Sequence[Planned], selection: Selection) -> tuple[Planned, ...]:
    return tuple(
        Planned(p.point, p.because, p.memory, p.refused, selection.why_not(p.point)) for p in found
    )


def _unmatched(found: Sequence[Planned], selection: Selection) -> tuple[str, ...]:
    """Parts of a filter that fit nothing: asking for what does not exist is a mistake."""
    points = [planned.point for planned in found]
    arms = {point.arm for point in points}
    sizes = {point.concurrency for point in points}
    return (
        *(f"arm {name}" for name in selection.arms if name not in arms),
        *(f"concurrency {value}" for value in selection.concurrencies if value not in sizes),
        *(
            f"point {wanted}"
            for wanted in selection.ids
            if not any(is_named(point, wanted) for point in points)
        ),
    )


def explain(planned: Planned) -> list[str]:
    """Why a point exists, what it is priced at, and why it is not run or not published."""
    lines = [f"exists because {planned.because}", f"memory: {summary(planned.memory)}"]
    point = planned.point
    if point.forced is not None:
        lines.append(f"acceptance: {point.forced.length} tokens a step, from {point.forced.source}")
    if point.dram_bytes:
        lines.append(f"host memory: {point.dram_bytes / 10**9:,.0f} GB")
    lines.append(f"serving plan: {serving_identity(point)[:_ID_DIGITS]}")
    if planned.dropped is not None:
        lines.append(f"dropped: {planned.dropped}")
    lines.extend(f"refused: {problem}" for problem in planned.refused)
    lines.extend(f"not publishable: {reason}" for reason in point.blockers)
    return lines
