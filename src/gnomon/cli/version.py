"""The ``gnomon version`` command: versions of everything that matters."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from typing import Annotated

import typer

import gnomon

PACKAGES = (
    "torch", "triton", "numpy", "safetensors", "tokenizers", "jinja2", "pydantic", "fastapi",
    "uvicorn", "pyzmq", "msgspec", "prometheus-client", "httpx", "matplotlib", "uv",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Name to version of gnomon, Python, the platform and the packages results depend on."""
    found = {"gnomon": gnomon.__version__, "python": platform.python_version()}
    found["platform"] = platform.platform()
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def register(app: typer.Typer) -> None:
    """Add the command to the app."""

    @app.command(help="Print the versions of gnomon and of everything its results depend on.")
    def version(
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        found = versions()
        if as_json:
            typer.echo(json.dumps(found, indent=2))
            return
        width = max(map(len, found))
        for name, value in found.items():
            typer.echo(f"{name:<{width}}  {value}")
