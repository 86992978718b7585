"""The ``gnomon`` command: registers one thin module per command."""

from __future__ import annotations

import importlib

import typer

COMMANDS = (
    *("serve", "plan", "run", "sweep", "report", "runs", "claims"),
    *("model", "clients", "version"),
)


def build_app() -> typer.Typer:
    """The whole command line; command modules import what they run only when called."""
    app = typer.Typer(
        name="gnomon",
        help="Serve block-sparse-attention models with 4-bit caches, and prove every number.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )

    @app.callback()
    def _root() -> None:
        """Keep commands as commands, even when only one is registered."""

    for name in COMMANDS:
        importlib.import_module(f"gnomon.cli.{name}").register(app)
    return app


def main() -> None:
    """Entry point of the console script and of ``python -m gnomon``."""
    build_app()()
