"""The ``gnomon plan`` command: what a server would allocate, or why it would not start."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from gnomon.cli.engine_flags import takes_engine_options
from gnomon.cli.refusals import refuse

if TYPE_CHECKING:
    from rich.table import Table

    from gnomon.engine.options import EngineOptions
    from gnomon.engine.startup import Startup


@takes_engine_options
def plan(
    options: EngineOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the plan; exit 2 with every refusal if the server could not start."""
    from gnomon.engine.errors import EngineError, Refusal, StartupRefused
    from gnomon.engine.models.loader import resolve_model
    from gnomon.engine.startup import prepare

    try:
        startup = prepare(resolve_model(options.model), options)
    except StartupRefused as error:
        refuse(error.refusals, as_json=as_json)
    except EngineError as error:
        problem = str(error).rstrip(".") + "."
        refuse([Refusal("model", problem, "Give a model this engine can load.")], as_json=as_json)
    if as_json:
        answer = {
            "ok": True,
            "refusals": [],
            "plan": asdict(startup.plan),
            "model_path": str(startup.path.resolve()),
        }
        typer.echo(json.dumps(answer, indent=2))
    else:
        from rich.console import Console

        console = Console()
        console.print(_pages_table(startup))
        console.print(_plan_table(startup))


def _pages_table(startup: Startup) -> Table:
    """Pages of a block, equal layers counted together."""
    from rich.table import Table

    from gnomon.engine.memory import layer_pages

    pages = Counter(
        (field, geometry.name, heads, geometry.page_bytes)
        for layer in layer_pages(startup.config, startup.options)
        for field, geometry, heads in (
            ("K", layer.k, layer.kv_heads),
            ("V", layer.v, layer.kv_heads),
            ("index key", layer.index, 1),
        )
        if geometry is not None
    )
    table = Table(title=f"one block of {startup.config.block_size} tokens", title_justify="left")
    for heading in ("field", "layout"):
        table.add_column(heading)
    for heading in ("layers", "heads", "bytes a page", "bytes a block"):
        table.add_column(heading, justify="right")
    for (field, name, heads, page_bytes), layers in pages.items():
        total = layers * heads * page_bytes
        table.add_row(field, name, str(layers), str(heads), f"{page_bytes:,}", f"{total:,}")
    return table


def _plan_table(startup: Startup) -> Table:
    from rich.table import Table

    memory = startup.plan
    table = Table(title=f"memory of {startup.options.model}", title_justify="left")
    table.add_column("what")
    table.add_column("how much", justify="right")
    rows = {
        "device": f"{startup.device.kind} ({startup.device.name})",
        "weights": f"{memory.weight_bytes:,} bytes",
        "block": f"{memory.block_bytes:,} bytes",
        f"blocks, limited by {memory.limited_by}": f"{memory.num_blocks:,}",
        "cache pools": f"{memory.pool_bytes:,} bytes",
        "tokens in the cache": f"{memory.tokens:,}",
        "longest request": f"{memory.max_model_len:,} tokens",
        "longest requests that fit at once": f"{memory.requests_at_max_len:,}",
    }
    for what, value in rows.items():
        table.add_row(what, value)
    return table


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(help="Show the memory plan of a server, or every reason why it cannot start.")(plan)
