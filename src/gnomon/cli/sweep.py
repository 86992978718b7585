"""The ``gnomon sweep`` commands: the points of a recipe, and what each would start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Recipe = Annotated[Path, typer.Argument(help="A recipe, such as recipes/gnomon-layouts.yaml.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    sweep = typer.Typer(help="Plan the points of a recipe.", no_args_is_help=True)
    sweep.command("plan")(plan)
    sweep.command("show")(show)
    app.add_typer(sweep, name="sweep")


def plan(
    recipe: Recipe,
    arm: Annotated[list[str] | None, typer.Option(help="Keep this arm; repeat for more.")] = None,
    concurrency: Annotated[
        list[int] | None, typer.Option(help="Keep this concurrency; repeat for more.")
    ] = None,
    point: Annotated[
        list[str] | None,
        typer.Option(help="Keep this point, or those whose id begins so; repeat for more."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why each point exists, is dropped or refused.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List every point of a recipe, with what keeps it from being run or published.

    Nothing is started. Filters select points and never change one. Exit status: 0 if every
    selected point can run, 2 if the recipe or one of them is refused, or a filter fits nothing.
    """
    from gnomon.harness.recipes.expand import Selection
    from gnomon.harness.sweep import plan_command

    selection = Selection(tuple(arm or ()), tuple(concurrency or ()), tuple(point or ()))
    raise typer.Exit(plan_command(recipe, selection, explain=explain, as_json=as_json))


def show(
    recipe: Recipe,
    point: Annotated[str, typer.Argument(help="A point's id, or the beginning of it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the processes a point would start: commands, variables, files, and what is read back.

    Nothing is started. Ports are examples. Exit status: 0, or 2 if the point is refused or unknown.
    """
    from gnomon.harness.sweep import show_command

    raise typer.Exit(show_command(recipe, point, as_json=as_json))
