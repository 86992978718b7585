"""The ``gnomon report`` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("report")(report)


def report(
    folder: Annotated[Path, typer.Argument(help="A run folder, as `gnomon run` printed it.")],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write; beside the folder if left out, for it never changes."),
    ] = None,
) -> None:
    """Render a run's page again, from the files in its folder."""
    from gnomon.harness.command import report_command

    raise typer.Exit(report_command(folder, out))
