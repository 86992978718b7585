"""Writing values as command lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gnomon.harness.adapters.protocol import Command, Deployment, Process, Readiness
from gnomon.harness.nouns import ServerAddress
from gnomon.harness.recipes.engine_spec import EngineBase


def render_flags(flags: Mapping[str, Any]) -> list[str]:
    """Values as arguments: ``--kv-cache-dtype mxfp4``, ``--no-...`` if false, JSON for mappings."""
    argv: list[str] = []
    for name, value in flags.items():
        option = name.replace("_", "-")
        if value is True:
            argv.append(f"--{option}")
        elif value is False:
            argv.append(f"--no-{option}")
        else:
            argv.extend((f"--{option}", render_value(value)))
    return argv


def render_value(value: Any) -> str:
    """A plain value as text, anything else as compact JSON with the keys in their order."""
    if isinstance(value, Mapping | list):
        return compact(value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def compact(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def present(pairs: Mapping[str, Any]) -> dict[str, Any]:
    """The pairs whose value is not None."""
    return {name: value for name, value in pairs.items() if value is not None}


def environment(engine: EngineBase, *extra: Mapping[str, str]) -> dict[str, str]:
    """The recipe's variables over an adapter's own."""
    env: dict[str, str] = {}
    for variables in extra:
        env.update(variables)
    env.update({name: flag.value for name, flag in engine.env.items()})
    return env


def single(
    command: Command,
    address: ServerAddress,
    health_path: str,
    ready_s: float,
    before: Iterable[Process] = (),
    files: Mapping[str, str] | None = None,
) -> Deployment:
    """A deployment of one server and the side services it needs."""
    ready = Readiness(address.port, health_path, ready_s)
    server = Process("server", command, ready, files or {})
    return Deployment((*before, server), address)
