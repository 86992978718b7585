"""How every command reports what it refuses: all reasons, each with what to change, status 2."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from gnomon.engine.errors import Refusal

REFUSED = 2
"""Exit status of a command that was refused."""


def refuse(refusals: Sequence[Refusal], *, as_json: bool = False) -> NoReturn:
    """Print the refusals and exit with status 2.

    Args:
        refusals: what to print, in order.
        as_json: print the object of ``gnomon plan --json`` on standard output instead of sentences
            on standard error.
    """
    if as_json:
        typer.echo(
            json.dumps({"ok": False, "refusals": [asdict(r) for r in refusals], "plan": None})
        )
    else:
        for refusal in refusals:
            typer.echo(f"refused [{refusal.code}]: {refusal.message} {refusal.remedy}", err=True)
    raise typer.Exit(REFUSED)
