"""The ``gnomon model`` commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    model = typer.Typer(no_args_is_help=True, help="Make model checkpoints.")
    app.add_typer(model, name="model")

    @model.callback()
    def _root() -> None:
        """Make model checkpoints."""

    @model.command(help="Write a deterministic random checkpoint in the released layout.")
    def new(
        directory: Annotated[Path, typer.Argument(help="A new or empty directory.")],
        preset: Annotated[str, typer.Option(help="Which model to write.")] = "nano",
        seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
    ) -> None:
        from gnomon.engine.errors import CheckpointError
        from gnomon.engine.models.presets.write import write_checkpoint

        try:
            folder = write_checkpoint(preset, seed, directory)
        except CheckpointError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None
        except OSError as error:
            reason = error.strerror or error
            typer.echo(
                f"error: {directory} cannot be written: {reason}. Choose another directory.",
                err=True,
            )
            raise typer.Exit(2) from None
        typer.echo(f"wrote preset {preset}, seed {seed}, to {folder}")
