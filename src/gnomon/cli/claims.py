"""The ``gnomon claims`` command: which sentences the records bear out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    claims = typer.Typer(help="Check claims against their records.", no_args_is_help=True)
    claims.command("check")(check)
    # With a callback a group stays one, though it has a single command.
    claims.callback()(lambda: None)
    app.add_typer(claims, name="claims")


def check(
    file: Annotated[Path, typer.Argument(help="A file of claims.")] = Path("claims.yaml"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say of every claim whether it holds, is stale, contradicted or unproven.

    Exit status: 0, or 1 if a record contradicts a claim, or 2 if the file is refused.
    """
    from gnomon.harness.claims import check_command

    raise typer.Exit(check_command(file, as_json=as_json))
