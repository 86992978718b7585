"""The ``gnomon`` command: registers one thin module per command."""

from __future__ import annotations

import importlib

import typer

app = typer.Typer(
    name="gnomon",
    help="Serve block-sparse-attention models with 4-bit caches, and prove every number.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def _root() -> None:
    """Serve block-sparse-attention models with 4-bit caches, and prove every number."""


def _register() -> None:
    """Let every command module add itself; they import what they run only when called."""
    for module in ("serve", "plan", "run", "report", "model", "clients", "version"):
        importlib.import_module(f"gnomon.cli.{module}").register(app)


def main() -> None:
    """Entry point of the console script and of ``python -m gnomon``."""
    _register()
    app()
