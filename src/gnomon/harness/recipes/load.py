"""From a recipe file to a checked recipe, or to every problem at once.

Schema and memory plan are checked together: parts of the recipe that are right on their own are
planned even when another part is wrong, so that a person corrects the file once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from gnomon.harness.cancel import CancelToken
from gnomon.harness.errors import Problem, RecipeRefused
from gnomon.harness.evals.spec import BfclSpec
from gnomon.harness.recipes.adapter import ADAPTERS, EngineAdapter, FlagValue
from gnomon.harness.recipes.plan import PlanReport, check_plan
from gnomon.harness.recipes.problems import problems_of
from gnomon.harness.recipes.schema import Deadlines, GnomonFlags, Recipe, cross_faults
from gnomon.harness.recipes.strict_yaml import read_yaml
from gnomon.harness.replay.spec import ReplaySpec

Model = TypeVar("Model", bound=BaseModel)

_UNLIMITED_BYTES = 1 << 50
_ANY_SIZE_LAYOUT = "mxfp4"  # the smallest: what it cannot hold, no layout can


@dataclass(frozen=True)
class CheckedRecipe:
    """A recipe that may run, with the plan that says so.

    Attributes:
        source: its file.
        text: of the file, kept with the evidence.
        recipe: typed, every default filled in.
        adapter: of its engine.
        plan: what the engine's own planner said.
    """

    source: Path
    text: str
    recipe: Recipe
    adapter: EngineAdapter
    plan: PlanReport


def check_recipe(source: Path, cancel: CancelToken | None = None) -> CheckedRecipe:
    """Read a recipe and prove that it can run here, before anything starts.

    Args:
        source: the YAML file.
        cancel: ends the planner's process early.

    Raises:
        RecipeRefused: with every problem of the file, of its parts together and of its plan.
        RunCancelled: the token was set.
    """
    text = _read(source)
    data, problems = read_yaml(text)
    found = list(problems)
    if not isinstance(data, dict):
        if not found:
            found.append(
                Problem("recipe", "the file is not a mapping.", "Start with 'name: <identifier>'.")
            )
        raise RecipeRefused(str(source), found)
    recipe = _parse(data, found)
    adapter = _adapter(data)
    plan: PlanReport | None = None
    model = _model_path(data)
    if adapter is not None and model is not None:
        deadlines = _part(Deadlines, data.get("deadlines", {})) or Deadlines()
        flags = plannable_flags(_flags_of(data))
        plan = check_plan(adapter, model, flags, deadlines.plan_s, cancel or CancelToken())
        found.extend(plan.problems)
    if found or recipe is None or adapter is None or plan is None:
        raise RecipeRefused(str(source), found)
    return CheckedRecipe(source, text, recipe, adapter, plan)


def plannable_flags(raw: Mapping[str, Any]) -> dict[str, FlagValue]:
    """The flag values that are right on their own, with stand-ins that can cause no refusal.

    A flag whose value cannot be read must not make the plan fail in its name: an unknown layout is
    planned as the smallest one, an unreadable size as no limit.
    """
    flags: dict[str, FlagValue] = {}
    unreadable: set[str] = set()
    for name, field in GnomonFlags.model_fields.items():
        if raw.get(name) is None:
            continue
        given = raw[name]
        value = given.get("value") if isinstance(given, dict) else given
        try:
            flag_type: Any = field.annotation
            parsed: Any = TypeAdapter(flag_type).validate_python(
                {"value": value, "why": "only the value is planned"}
            )
        except ValidationError:
            unreadable.add(name)
        else:
            flags[name] = parsed.value
    for name in unreadable & {"kv_cache_dtype", "index_cache_dtype"}:
        flags[name] = _ANY_SIZE_LAYOUT
    if unreadable & {"kv_cache_memory_bytes", "num_blocks", "max_model_len", "max_num_seqs"}:
        flags.pop("num_blocks", None)
        flags["kv_cache_memory_bytes"] = _UNLIMITED_BYTES
    return flags


def _read(source: Path) -> str:
    try:
        return source.read_text(encoding="utf-8")
    except OSError as error:
        problem = Problem(
            "recipe", f"cannot be read: {error.strerror}.", "Give the path of a YAML file."
        )
        raise RecipeRefused(str(source), [problem]) from None
    except UnicodeDecodeError:
        problem = Problem("recipe", "is not UTF-8 text.", "Save the file as UTF-8.")
        raise RecipeRefused(str(source), [problem]) from None


def _parse(data: dict[str, Any], found: list[Problem]) -> Recipe | None:
    """Validate the whole, then compare the parts that are readable with each other."""
    recipe: Recipe | None = None
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        # A fault between parts is raised at the root and is reported below, part by part.
        found.extend(p for p in problems_of(error, Recipe) if p.path != "recipe")
    flags = _part(GnomonFlags, _flags_of(data))
    replay = _part(ReplaySpec, data.get("replay"))
    evals = [_part(BfclSpec, item) for item in _list(data.get("evals"))]
    readable = tuple(spec for spec in evals if spec is not None)
    faults = cross_faults(flags, replay, readable, data.get("scope"))
    found.extend(Problem(*fault) for fault in faults)
    return recipe


def _part(model: type[Model], data: object) -> Model | None:
    try:
        return model.model_validate(data)
    except ValidationError:
        return None


def _list(data: object) -> list[Any]:
    return data if isinstance(data, list) else []


def _flags_of(data: Mapping[str, Any]) -> dict[str, Any]:
    engine = data.get("engine")
    flags = engine.get("flags") if isinstance(engine, dict) else None
    return flags if isinstance(flags, dict) else {}


def _adapter(data: Mapping[str, Any]) -> EngineAdapter | None:
    engine = data.get("engine")
    name = engine.get("name") if isinstance(engine, dict) else None
    return ADAPTERS.get(name) if isinstance(name, str) else None


def _model_path(data: Mapping[str, Any]) -> str | None:
    model = data.get("model")
    path = model.get("path") if isinstance(model, dict) else None
    return path if isinstance(path, str) and path else None
