"""The ``gnomon model`` commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXPERT_FORMATS = "bf16, mxfp8, mxfp4 or nvfp4"


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

    @model.command(help="Write a checkpoint again with experts and linears quantised.")
    def quantize(
        source: Annotated[Path, typer.Argument(help="A bf16 checkpoint directory.")],
        target: Annotated[Path, typer.Argument(help="A new or empty directory.")],
        experts: Annotated[str, typer.Option(help=f"Routed experts: {EXPERT_FORMATS}.")] = "mxfp4",
        linears: Annotated[
            str,
            typer.Option(help=f"Attention, dense MLPs, shared experts: {EXPERT_FORMATS}."),
        ] = "mxfp8",
    ) -> None:
        from gnomon.cli.engine_flags import parse_options
        from gnomon.cli.refusals import refuse
        from gnomon.engine.errors import CheckpointError
        from gnomon.engine.models.convert import quantise_checkpoint

        given = {"expert_weights": experts, "linear_weights": linears}
        options, problems = parse_options(str(source), given)
        if options is None:
            refuse(problems)
        try:
            quantise_checkpoint(source, target, options)
        except (CheckpointError, OSError) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None
        typer.echo(f"wrote {source} to {target}: experts {experts}, linears {linears}")
