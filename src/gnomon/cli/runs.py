"""The ``gnomon runs`` commands: what is in a store, whether it is whole, and how to move it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[str, typer.Argument(help="A run's id, the beginning of it, or its folder.")]
StoreRoot = Annotated[Path, typer.Option("--store", help="Folder that holds the runs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Reason = Annotated[str, typer.Option(help="Why, in a sentence; it is kept for good.")]
RUNS = Path("runs")


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    runs = typer.Typer(help="List, verify, compare and move runs.", no_args_is_help=True)
    runs.command("list")(list_)
    for command in (show, verify, explain, seal, sign, export, supersede, remove, gc):
        runs.command(command.__name__)(command)
    runs.command("import")(import_)
    app.add_typer(runs, name="runs")


def list_(store: StoreRoot = RUNS, as_json: AsJson = False) -> None:
    """List every run, the unsealed, damaged, superseded and removed ones too."""
    from gnomon.harness.runs import list_command

    raise typer.Exit(list_command(store, as_json=as_json))


def show(run: Run, store: StoreRoot = RUNS, as_json: AsJson = False) -> None:
    """Show what a run is, what it came to, and what was said of it since."""
    from gnomon.harness.runs import show_command

    raise typer.Exit(show_command(store, run, as_json=as_json))


def verify(
    run: Annotated[
        list[str] | None,
        typer.Argument(help="Runs, or packed runs by address; the whole store if left out."),
    ] = None,
    store: StoreRoot = RUNS,
    signed_by: Annotated[
        Path | None, typer.Option(help="Public key that must have signed every one.")
    ] = None,
) -> None:
    """Read every byte of runs and compare it with what was sealed.

    Exit status: 0 if all are whole, 1 if not.
    """
    from gnomon.harness.runs import verify_command

    raise typer.Exit(verify_command(store, run or [], signed_by))


def explain(
    a: Annotated[str, typer.Argument(help="A run.")],
    b: Annotated[str, typer.Argument(help="Another run.")],
    store: StoreRoot = RUNS,
    as_json: AsJson = False,
) -> None:
    """Say which inputs of two runs' content keys differ.

    Exit status: 0 if the keys are equal, 1 if they differ.
    """
    from gnomon.harness.runs import explain_command

    raise typer.Exit(explain_command(store, a, b, as_json=as_json))


def seal(run: Run, store: StoreRoot = RUNS) -> None:
    """Seal a run whose process was killed, as far as it went."""
    from gnomon.harness.runs import seal_command

    raise typer.Exit(seal_command(store, run))


def sign(
    run: Run,
    key: Annotated[
        Path, typer.Option(help="Ed25519 private key, PEM or OpenSSH, without a passphrase.")
    ],
    store: StoreRoot = RUNS,
) -> None:
    """Sign a sealed run's manifest, and thereby every file of it."""
    from gnomon.harness.runs import sign_command

    raise typer.Exit(sign_command(store, run, key))


def export(
    run: Run,
    to: Annotated[
        str,
        typer.Argument(
            help="File, or a folder with a slash at its end: a path, or an address that fsspec "
            "knows (s3://…, gs://…)."
        ),
    ] = "./",
    store: StoreRoot = RUNS,
) -> None:
    """Pack a sealed run into one file that can be verified anywhere."""
    from gnomon.harness.runs import export_command

    raise typer.Exit(export_command(store, run, to))


def import_(
    source: Annotated[
        str,
        typer.Argument(help="A packed run, or a folder of them with a slash at its end."),
    ],
    store: StoreRoot = RUNS,
) -> None:
    """Bring packed runs into the store, each whole and verified or not at all."""
    from gnomon.harness.runs import import_command

    raise typer.Exit(import_command(store, source))


def supersede(
    run: Run,
    by: Annotated[str, typer.Option(help="The run that stands in its place.")],
    reason: Reason,
    store: StoreRoot = RUNS,
) -> None:
    """Record that another run stands in the place of one; both are kept."""
    from gnomon.harness.runs import supersede_command

    raise typer.Exit(supersede_command(store, run, by, reason))


def remove(run: Run, reason: Reason, store: StoreRoot = RUNS) -> None:
    """Record that a run must not be used; `gnomon runs gc` may then delete its files."""
    from gnomon.harness.runs import remove_command

    raise typer.Exit(remove_command(store, run, reason))


def gc(
    store: StoreRoot = RUNS,
    unsealed: Annotated[
        bool, typer.Option("--unsealed", help="Also runs never sealed, whose process is gone.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Delete the files of removed runs and what killed processes left; the records stay."""
    from gnomon.harness.runs import gc_command

    raise typer.Exit(gc_command(store, unsealed=unsealed, dry_run=dry_run))
