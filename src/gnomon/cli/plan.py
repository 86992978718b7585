"""The ``gnomon plan`` command: what a server would allocate, or why it would not start."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnomon.cli.engine_flags import takes_engine_options
from gnomon.cli.refusals import refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from gnomon.engine.device import DeviceFacts
    from gnomon.engine.memory import MemoryPlan
    from gnomon.engine.options import EngineOptions
    from gnomon.engine.startup import Startup


@takes_engine_options
def plan(
    options: EngineOptions,
    device: Annotated[
        str,
        typer.Option(
            help="cpu, gpu (those of this machine), or a kind: h100, h200, b200, mi300x, ..."
        ),
    ] = "cpu",
    gpus: Annotated[
        int,
        typer.Option(min=1, help="GPUs of a described machine; also the ranks unless said."),
    ] = 1,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Published weights to plan for, of a model without files: bf16, mxfp8, mxfp4 "
            "(experts), nvfp4 (experts, MXFP8 linears)."
        ),
    ] = None,
    draft: Annotated[
        str | None, typer.Option(help="Draft model to leave room for: dspark.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the plan; exit 2 with every refusal if the server could not start."""
    from gnomon.engine.errors import EngineError, OptionsError, Refusal
    from gnomon.engine.nvml import NoGpu
    from gnomon.engine.startup import survey

    try:
        machine = _machine(device, gpus)
        if machine is not None and "tensor_parallel_size" not in options.model_fields_set:
            options = options.model_copy(update={"tensor_parallel_size": len(machine.gpus)})
        startup, refusals = survey(options, machine, weights, draft)
    except OptionsError as error:
        refuse([Refusal("option", f"{error}.", "Change it.")], as_json=as_json)
    except NoGpu as error:
        refuse([Refusal("no-gpu", f"{error}.", "Or leave --device out.")], as_json=as_json)
    except EngineError as error:
        problem = str(error).rstrip(".") + "."
        refuse([Refusal("model", problem, "Give a model this engine can load.")], as_json=as_json)
    if refusals and as_json:
        refuse(refusals, as_json=True)
    if as_json:
        typer.echo(json.dumps(_answer(startup), indent=2))
        return
    from rich.console import Console

    from gnomon.engine.plan_table import LAYOUT_HEADINGS, layout_rows, memory_rows

    console = Console()
    layouts = _table("what each cache layout would give", LAYOUT_HEADINGS, ())
    if startup.device.kind != "cpu" and not startup.plan.sharding_problems:
        for row in layout_rows(startup.alternatives()):
            layouts.add_row(*row)
    if refusals:
        if layouts.row_count:
            console.print(layouts)
        refuse(refusals)
    replicas = max(1, len(startup.device.gpus) // startup.plan.ranks)
    rows = memory_rows(startup, replicas)
    console.print(_pages_table(startup))
    console.print(_table(f"memory of {options.model}", ("what", "how much"), rows))
    if layouts.row_count:
        console.print(layouts)


def _machine(device: str, gpus: int) -> DeviceFacts | None:
    """The machine to plan for; None for this host's CPU."""
    from gnomon.engine.device import described_device, gpu_machine
    from gnomon.engine.device_table import DEVICES
    from gnomon.engine.errors import OptionsError
    from gnomon.engine.nvml import live_gpus

    if device in DEVICES:
        return described_device(device, gpus)
    if device not in ("cpu", "gpu"):
        known = ", ".join(("cpu", "gpu", *DEVICES))
        raise OptionsError(f"--device {device!r} is unknown; choose one of {known}")
    if gpus != 1:
        raise OptionsError(f"--gpus {gpus} describes a machine; name its kind with --device")
    return gpu_machine(live_gpus()) if device == "gpu" else None


def _answer(startup: Startup) -> dict[str, Any]:
    def numbers(memory: MemoryPlan) -> dict[str, Any]:
        return {
            **asdict(memory),
            "longest_context": memory.longest_context,
            "sessions_128k": memory.sessions,
        }

    layouts = startup.alternatives() if startup.device.kind != "cpu" else {}
    return {
        "ok": True,
        "refusals": [],
        "plan": numbers(startup.plan),
        "device": asdict(startup.device),
        "layouts": {fmt.value: numbers(memory) for fmt, memory in layouts.items()},
        "model_path": None if startup.path is None else str(startup.path.resolve()),
    }


def _pages_table(startup: Startup) -> Table:
    """Pages of a block, equal layers counted together."""
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
    rows = [
        (field, name, str(layers), str(heads), f"{size:,}", f"{layers * heads * size:,}")
        for (field, name, heads, size), layers in pages.items()
    ]
    headings = ("field", "layout", "layers", "heads", "bytes a page", "bytes a block")
    return _table(f"one block of {startup.config.block_size} tokens", headings, rows)


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose columns of numbers are flush right."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for i, heading in enumerate(headings):
        text = i == 0 or heading == "layout"
        # Folded, not cut, on a narrow terminal: no digit may be lost.
        table.add_column(heading, justify="left" if text else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(help="Show the memory plan of a server, or every reason why it cannot start.")(plan)
