"""From a recipe file to a checked recipe, or to every problem at once.

Schema and memory plan are checked together: parts of the recipe that are right on their own are
planned even when another part is wrong, so that a person corrects the file once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from gnomon.harness.adapters.catalogue import ADAPTERS
from gnomon.harness.adapters.gnomon import PLANNED_AT, options
from gnomon.harness.adapters.protocol import EngineAdapter, FlagValue
from gnomon.harness.cancel import CancelToken
from gnomon.harness.errors import Problem, RecipeRefused
from gnomon.harness.evals.spec import BfclSpec
from gnomon.harness.recipes.expand import Planned, Selection, Tables, expand
from gnomon.harness.recipes.flags import GnomonFlags
from gnomon.harness.recipes.golden import GoldenError, GoldenTable, golden_folder, load_golden
from gnomon.harness.recipes.locate import Location
from gnomon.harness.recipes.merge import Tree, read_text, read_tree, spread_arms, written_path
from gnomon.harness.recipes.plan import PlanReport, check_plan
from gnomon.harness.recipes.point import Point
from gnomon.harness.recipes.problems import dotted, problems_of
from gnomon.harness.recipes.schema import (
    SINGLE_ARM,
    ArmParts,
    Deadlines,
    Recipe,
    arm_faults,
    header_faults,
    name_faults,
)
from gnomon.harness.recipes.serving import KvSpec, LimitsSpec
from gnomon.harness.replay.spec import Scenario

Model = TypeVar("Model", bound=BaseModel)

_UNLIMITED_BYTES = 1 << 50
_ANY_SIZE_LAYOUT = "mxfp4"  # the smallest: what it cannot hold, no layout can
_SCENARIO: TypeAdapter[Any] = TypeAdapter(Scenario)


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe that was read, and the curves it may refer to.

    Attributes:
        source: its file.
        recipe: typed, merged, every default filled in.
        golden: curves of the ``golden`` folder beside it.
    """

    source: Path
    recipe: Recipe
    golden: GoldenTable


@dataclass(frozen=True)
class CheckedRecipe:
    """A point of a recipe that may run, with the plan that says so.

    Attributes:
        source: the recipe's file.
        text: of that file, kept with the evidence.
        point: what is to be run.
        adapter: of its engine.
        plan: what the engine's own planner said.
    """

    source: Path
    text: str
    point: Point
    adapter: EngineAdapter
    plan: PlanReport


def load_recipe(source: Path) -> LoadedRecipe:
    """Read a recipe with everything it extends.

    Raises:
        RecipeRefused: with every problem of the files and of their parts together.
    """
    found: list[Problem] = []
    tree = read_tree(source, found)
    recipe = _parse(tree, found) if tree is not None else None
    golden = _golden(source, found)
    if found or recipe is None:
        raise RecipeRefused(str(source), found)
    return LoadedRecipe(source, recipe, golden)


def check_recipe(
    source: Path, cancel: CancelToken | None = None, point_id: str | None = None
) -> CheckedRecipe:
    """Read a recipe and prove that one of its points can run here, before anything starts.

    Args:
        source: the YAML file.
        cancel: ends the planner's process early.
        point_id: which point, or the beginning of its id; not needed where there is only one.

    Raises:
        RecipeRefused: with every problem of the file, of its parts together and of its plan.
        RunCancelled: the token was set.
    """
    found: list[Problem] = []
    tree = read_tree(source, found)
    if tree is None:
        raise RecipeRefused(str(source), found)
    recipe = _parse(tree, found)
    golden = _golden(source, found)
    point = _choose(recipe, golden, point_id, found) if recipe is not None and not found else None
    plan: PlanReport | None = None
    adapter: EngineAdapter | None = None
    raw = _arm_to_plan(tree, point)
    if raw is not None:
        adapter, plan = _plan(raw, tree, point, cancel or CancelToken())
        found.extend(plan.problems if plan is not None else ())
    if found or point is None or adapter is None or plan is None:
        raise RecipeRefused(str(source), found)
    return CheckedRecipe(source, read_text(source, found) or "", point, adapter, plan)


def _choose(
    recipe: Recipe, golden: GoldenTable, point_id: str | None, found: list[Problem]
) -> Point | None:
    """The one point to run; a problem where there is none, or more than one."""
    selection = Selection(ids=(point_id,) if point_id is not None else ())
    expansion = expand(recipe, Tables(golden=golden), selection)
    chosen = [p for p in (*expansion.points, *expansion.evaluations) if p.dropped is None]
    if len(chosen) != 1:
        what = f"{point_id!r} fits" if point_id is not None else "the recipe has"
        names = ", ".join(planned.point.id for planned in chosen[:5]) or "none"
        found.append(
            Problem(
                "recipe",
                f"{what} {len(chosen)} points, and a run executes one: {names}"
                f"{', …' if len(chosen) > 5 else ''}.",
                "Name one with --point; `gnomon sweep plan` lists them.",
            )
        )
        return None
    found.extend(chosen[0].refused)
    found.extend(_cannot_start(chosen[0]))
    return chosen[0].point


def _cannot_start(planned: Planned) -> list[Problem]:
    """Why a point that could run elsewhere cannot be run by this command."""
    point = planned.point
    problems = []
    if not ADAPTERS[point.engine.name].starts_here:
        problems.append(
            Problem(
                "engine.name",
                f"`gnomon run` starts no {point.engine.name} server.",
                "Render its command with `gnomon sweep show`.",
            )
        )
    if point.scenario is not None:
        problems.append(
            Problem(
                "scenario.kind",
                f"`gnomon run` replays generated traces, not {point.scenario.kind}.",
                "Use kind: agentic.",
            )
        )
    return problems


def _arm_to_plan(tree: Tree, point: Point | None) -> Tree | None:
    """Raw data of the arm whose plan is asked: the chosen one, or the first of a broken recipe."""
    spread, _ = spread_arms(tree)
    arms = spread["arms"]
    if not isinstance(arms, list):
        return None
    for arm in arms:
        if not isinstance(arm, dict):
            return None
        if point is None or arm.get("name", point.arm) == point.arm:
            return arm
    return None


def _plan(
    raw: Tree, tree: Tree, point: Point | None, cancel: CancelToken
) -> tuple[EngineAdapter | None, PlanReport | None]:
    """Ask the engine's planner, where engine and model can be read at all.

    A point is planned with the very options it is served with; without one, those of the first arm
    that are right on their own are.
    """
    name = _section(raw, "engine").get("name")
    path = _section(raw, "model").get("path")
    adapter = ADAPTERS.get(name) if isinstance(name, str) else None
    if adapter is None or not adapter.starts_here or not isinstance(path, str) or not path:
        return adapter, None
    deadlines = _part(Deadlines, tree.get("deadlines", {})) or Deadlines()
    flags = plannable(raw) if point is None else options(point)
    return adapter, check_plan(adapter, path, flags, deadlines.plan_s, cancel)


def plannable(raw: Mapping[str, Any]) -> dict[str, FlagValue]:
    """The options that are right on their own, with stand-ins that can cause no refusal.

    A value that cannot be read must not make the plan fail in its name: an unknown layout is
    planned as the smallest one, an unreadable size as no limit.

    Args:
        raw: data of one arm, not validated.
    """
    planned: dict[str, FlagValue] = {}
    unreadable: set[str] = set()
    for name, given, kind in _raw_options(raw):
        value = given.get("value") if isinstance(given, dict) else given
        try:
            parsed: Any = TypeAdapter(kind).validate_python(
                {"value": value, "why": "only the value is planned"}
            )
        except ValidationError:
            unreadable.add(name)
        else:
            planned[name] = parsed.value
    for name in unreadable & {"kv_cache_dtype", "index_cache_dtype"}:
        planned[name] = _ANY_SIZE_LAYOUT
    if unreadable & {"kv_cache_memory_bytes", "num_blocks", "max_model_len", "max_num_seqs"}:
        planned.pop("num_blocks", None)
        planned["kv_cache_memory_bytes"] = _UNLIMITED_BYTES
    return planned


def _raw_options(raw: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Name, given data and type of every option of ``gnomon serve`` that is set."""
    sections: dict[str, type[BaseModel]] = {"kv": KvSpec, "limits": LimitsSpec}
    found = []
    for option, place in PLANNED_AT.items():
        section, key = place.split(".")
        given = _section(raw, section).get(key)
        if given is not None:
            found.append((option, given, sections[section].model_fields[key].annotation))
    flags = _section(_section(raw, "engine"), "flags")
    for name, field in GnomonFlags.model_fields.items():
        if flags.get(name) is not None:
            found.append((name, flags[name], field.annotation))
    return found


def _parse(tree: Tree, found: list[Problem]) -> Recipe | None:
    """Validate the whole, then compare the parts that are readable with each other."""
    spread, own = spread_arms(tree)

    def written(path: Location) -> Location:
        return written_path(path, tree, own)

    recipe: Recipe | None = None
    try:
        recipe = Recipe.model_validate(spread)
    except ValidationError as error:
        # A fault between parts is raised at the root and is reported below, part by part.
        found.extend(p for p in problems_of(error, Recipe, written) if p.path != "recipe")
    faults = dict.fromkeys(_faults(spread, written))
    found.extend(Problem(*fault) for fault in faults)
    return recipe


def _faults(spread: Tree, written: Callable[[Location], Location]) -> list[tuple[str, str, str]]:
    """Faults between the readable parts, at the places where they are written."""
    try:
        scenario = _SCENARIO.validate_python(spread.get("scenario"))
    except ValidationError:
        scenario = None
    faults = header_faults(scenario, spread.get("scope"))
    arms = spread["arms"] if isinstance(spread["arms"], list) else []
    for position, arm in enumerate(arms):
        if not isinstance(arm, dict):
            continue
        evals = [_part(BfclSpec, item) for item in _list(arm.get("evals"))]
        parts = ArmParts(
            limits=_part(LimitsSpec, arm.get("limits", {})),
            scenario=scenario,
            evals=tuple(spec for spec in evals if spec is not None),
            loaded=arm.get("concurrency") is not None,
        )
        for path, message, remedy in arm_faults(parts):
            first = path.split(".")[0].split("[")[0]
            inherited = dotted(written(("arms", position, first))) == first
            where = path if inherited else f"arms[{position}].{path}"
            faults.append((where, message, remedy))
    names = [str(arm.get("name", SINGLE_ARM)) for arm in arms if isinstance(arm, dict)]
    return faults + (name_faults(names) if isinstance(spread["arms"], list) else [])


def _golden(source: Path, found: list[Problem]) -> GoldenTable:
    try:
        return load_golden(golden_folder(source))
    except GoldenError as error:
        found.append(Problem("golden", f"{error}.", "Correct that file."))
        return GoldenTable()


def _part(model: type[Model], data: object) -> Model | None:
    try:
        return model.model_validate(data)
    except ValidationError:
        return None


def _list(data: object) -> list[Any]:
    return data if isinstance(data, list) else []


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = data.get(name)
    return section if isinstance(section, dict) else {}
