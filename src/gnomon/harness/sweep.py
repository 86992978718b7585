"""What ``gnomon sweep plan`` and ``gnomon sweep show`` print. Nothing here starts anything."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from gnomon.harness.adapters.catalogue import ADAPTERS
from gnomon.harness.adapters.protocol import Deployment, Ports
from gnomon.harness.command import OK, REFUSED, print_refusal
from gnomon.harness.errors import RecipeRefused
from gnomon.harness.nouns import ServerAddress
from gnomon.harness.recipes.expand import Expansion, Planned, Selection, Tables, expand, explain
from gnomon.harness.recipes.load import load_recipe
from gnomon.harness.recipes.memory import summary
from gnomon.harness.recipes.point import Point, serving_identity

EXAMPLE_PORT = 8000
_ID_DIGITS = 8


def plan_command(source: Path, selection: Selection, *, explain: bool, as_json: bool) -> int:
    """Print the points of a recipe; returns the exit status."""
    out, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        expansion = _expand(source, selection)
    except RecipeRefused as refusal:
        print_refusal(errors, refusal)
        return REFUSED
    if as_json:
        print(json.dumps(as_data(expansion), indent=2))
    else:
        for line in describe(expansion, explain):
            out.print(Text(line), soft_wrap=True)
    for part in expansion.unmatched:
        errors.print(Text(f"the filter fits nothing: the recipe has no {part}"), soft_wrap=True)
    return REFUSED if expansion.refused or expansion.unmatched else OK


def show_command(source: Path, point_id: str, *, as_json: bool) -> int:
    """Print what one point would start; returns the exit status."""
    out, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    try:
        expansion = _expand(source, Selection(ids=(point_id,)))
    except RecipeRefused as refusal:
        print_refusal(errors, refusal)
        return REFUSED
    chosen = [p for p in (*expansion.points, *expansion.evaluations) if p.dropped is None]
    if len(chosen) != 1:
        fits = ", ".join(p.point.id for p in chosen) or "none"
        errors.print(Text(f"{point_id!r} fits {len(chosen)} points: {fits}"), soft_wrap=True)
        return REFUSED
    planned = chosen[0]
    if planned.refused:
        print_refusal(errors, RecipeRefused(planned.point.id, planned.refused))
        return REFUSED
    deployment = deploy(planned.point)
    if as_json:
        print(json.dumps(asdict(deployment), indent=2))
        return OK
    for line in commands(planned.point, deployment):
        out.print(Text(line), soft_wrap=True)
    return OK


def _expand(source: Path, selection: Selection) -> Expansion:
    loaded = load_recipe(source)
    return expand(loaded.recipe, Tables(golden=loaded.golden), selection)


def describe(expansion: Expansion, reasons: bool) -> list[str]:
    """The lines of a plan.

    Args:
        expansion: what to print.
        reasons: whether to say why each point exists, is dropped, refused or not publishable.
    """
    recipe = expansion.recipe
    mark = " (probe: never published)" if recipe.purpose == "probe" else ""
    lines = [f"{recipe.name}{mark}: {_counted(expansion)}", ""]
    for planned in (*expansion.points, *expansion.evaluations):
        if planned.dropped is not None and not reasons:
            continue
        lines.append(f"{_state(planned):<9} {planned.point.id}")
        if reasons:
            lines.extend(f"          {line}" for line in explain(planned))
        else:
            lines.extend(f"          {problem}" for problem in planned.refused)
    lines.extend(_closing(expansion, reasons))
    return lines


def _counted(expansion: Expansion) -> str:
    standing = len(expansion.standing)
    parts = [f"{standing} point{'s' if standing != 1 else ''}"]
    if expansion.evaluations:
        kept = sum(p.stands for p in expansion.evaluations)
        parts.append(f"{kept} evaluation{'s' if kept != 1 else ''} with a server of their own")
    dropped = sum(p.dropped is not None for p in (*expansion.points, *expansion.evaluations))
    if dropped:
        parts.append(f"{dropped} dropped by the filter")
    if expansion.refused:
        parts.append(f"{len(expansion.refused)} refused")
    return ", ".join(parts)


def _state(planned: Planned) -> str:
    if planned.dropped is not None:
        return "dropped"
    return "refused" if planned.refused else planned.point.profile


def _closing(expansion: Expansion, reasons: bool) -> list[str]:
    """What the arms share, said once: the memory plan, the coverage, the reasons against."""
    lines = [""]
    if not reasons:
        arms = {p.point.arm: summary(p.memory) for p in expansion.standing}
        lines.extend(f"memory    {arm}: {text}" for arm, text in arms.items())
    lines.extend(f"uncovered {gap}" for gap in expansion.gaps)
    if not reasons:
        standing = [p.point for p in expansion.standing]
        against = Counter(reason for point in standing for reason in point.blockers)
        gaps = set(expansion.gaps)
        lines.extend(
            f"blocked   {count} of {len(standing)} points: {reason}"
            for reason, count in against.items()
            if reason not in gaps
        )
    return lines


def as_data(expansion: Expansion) -> dict[str, Any]:
    """The plan as plain data."""

    def row(planned: Planned) -> dict[str, Any]:
        point = planned.point
        return {
            "id": point.id,
            "arm": point.arm,
            "profile": point.profile,
            "concurrency": point.concurrency,
            "state": _state(planned),
            "serving": serving_identity(point)[:_ID_DIGITS],
            "because": planned.because,
            "dropped": planned.dropped,
            "refused": [asdict(problem) for problem in planned.refused],
            "memory": {"state": planned.memory.state, "says": summary(planned.memory)},
            "acceptance_length": point.forced.length if point.forced is not None else None,
            "dram_bytes": point.dram_bytes,
            "gpus": point.topology.total_gpus,
            "not_publishable": list(point.blockers),
        }

    return {
        "recipe": expansion.recipe.name,
        "purpose": expansion.recipe.purpose,
        "points": [row(planned) for planned in expansion.points],
        "evaluations": [row(planned) for planned in expansion.evaluations],
        "uncovered": list(expansion.gaps),
    }


def deploy(point: Point) -> Deployment:
    """The processes of a point, with example ports."""
    address = ServerAddress("127.0.0.1", EXAMPLE_PORT, point.model.served_name)
    return ADAPTERS[point.engine.name].deploy(point, address, Ports(EXAMPLE_PORT))


def commands(point: Point, deployment: Deployment) -> list[str]:
    """What a point would start, one process after the other, and what is read back of it."""
    adapter = ADAPTERS[point.engine.name]
    lines = [f"# {point.id}: {point.profile}, {point.concurrency} sessions"]
    if point.engine.image is not None:
        lines.append(f"# image {point.engine.image.reference} ({point.engine.image.digest})")
    for process in deployment.processes:
        ready = process.ready
        where = f"GET {ready.path} on" if ready.path is not None else "a connection to"
        lines += ["", f"# {process.role}: ready at {where} {ready.port} in {ready.deadline_s:g} s"]
        lines += [
            f"export {name}={shlex.quote(value)}" for name, value in process.command.env.items()
        ]
        for name, text in process.files.items():
            lines += [f"# file {name}", *(f"#| {line}" for line in text.splitlines())]
        lines.append(shlex.join(process.command.argv))
    settings = adapter.settings(point, {})
    if settings:
        lines += ["", "# read back"]
        lines += [f"#   {s.name} = {s.asked}  ({adapter.info_path}: {s.pointer})" for s in settings]
    lines += [f"#   {p.name}  (log, {p.per}: {p.pattern})" for p in adapter.log_patterns]
    return lines
