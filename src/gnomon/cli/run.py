"""The ``gnomon run`` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

REFUSED = 2


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("run")(run)


def run(
    recipe: Annotated[Path, typer.Argument(help="A recipe, such as recipes/quickstart.yaml.")],
    out: Annotated[Path, typer.Option(help="Folder that gets a new folder for this run.")] = Path(
        "runs"
    ),
    point: Annotated[
        str | None,
        typer.Option(help="Which point, or the beginning of its id, where there are several."),
    ] = None,
    reuse: Annotated[
        bool,
        typer.Option(
            "--reuse",
            help="Do not measure again what a valid run in --out measured with the same content "
            "key; the server is still started and attested.",
        ),
    ] = False,
) -> None:
    """Run a point of a recipe: serve, attest, replay, evaluate, and leave a folder of evidence.

    Exit status: 0 if the integration verdict passed, 1 if not, 2 if the recipe is refused,
    128 + signal if interrupted.
    """
    from gnomon.harness.command import run_command

    raise typer.Exit(run_command(recipe, out, point, reuse=reuse))
