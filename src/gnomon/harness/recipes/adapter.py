"""Engine adapters: how a recipe becomes a command line, probes and settings to read back."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gnomon.harness.nouns import ServerAddress
from gnomon.harness.recipes.schema import Recipe

FlagValue = str | int | float | bool


@dataclass(frozen=True)
class Command:
    """A program to start.

    Attributes:
        argv: program and arguments.
        env: variables added to the inherited environment.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Setting:
    """One thing the recipe asked for, and where the running server says what it really does.

    Attributes:
        name: for the check, as the recipe or the plan calls it.
        asked: the expected value, normalised to what the server reports.
        pointer: dotted path into the server's own description of itself.
    """

    name: str
    asked: FlagValue
    pointer: str


class EngineAdapter(Protocol):
    """What the harness must know about an engine to run it and to believe it."""

    @property
    def name(self) -> str:
        """As recipes select it."""
        ...

    @property
    def health_path(self) -> str:
        """Answers 200 once the server can serve."""
        ...

    @property
    def info_path(self) -> str | None:
        """Where the server describes itself as JSON, or None if it cannot."""
        ...

    def plan(self, model: str, flags: Mapping[str, FlagValue]) -> Command:
        """The command that checks a plan on this machine and prints it as JSON."""
        ...

    def serve(self, recipe: Recipe, address: ServerAddress) -> Command:
        """The command that starts the server."""
        ...

    def settings(self, recipe: Recipe, plan: Mapping[str, Any]) -> tuple[Setting, ...]:
        """What the running server must report; a setting it cannot report fails attestation."""
        ...


@dataclass(frozen=True)
class GnomonAdapter:
    """This project's own engine, started as a separate program and met only over HTTP."""

    name: str = "gnomon"
    health_path: str = "/health"
    info_path: str | None = "/server_info"

    def plan(self, model: str, flags: Mapping[str, FlagValue]) -> Command:
        """``gnomon plan MODEL ... --json`` in this interpreter."""
        argv = (sys.executable, "-m", "gnomon", "plan", model, *render_flags(flags), "--json")
        return Command(argv, {})

    def serve(self, recipe: Recipe, address: ServerAddress) -> Command:
        """``gnomon serve MODEL ...`` in this interpreter; a key travels in the environment."""
        argv = (
            *(sys.executable, "-m", "gnomon", "serve", recipe.model.path),
            *("--host", address.host, "--port", str(address.port)),
            *("--served-model-name", address.model),
            *render_flags(flag_values(recipe)),
        )
        return Command(argv, {"PYTHONUNBUFFERED": "1"})

    def settings(self, recipe: Recipe, plan: Mapping[str, Any]) -> tuple[Setting, ...]:
        """Every flag the recipe sets, plus what follows from them and from the plan."""
        flags = flag_values(recipe)
        asked: dict[str, FlagValue] = {
            name: value for name, value in flags.items() if name in _ATTESTED_FLAGS
        }
        layout = _layout(flags.get("kv_cache_dtype", "auto"))
        asked["kv_cache_dtype"] = layout
        asked["index_cache_dtype"] = _layout(flags.get("index_cache_dtype", layout), layout)
        if flags.get("dtype") == "auto":
            asked.pop("dtype", None)
        for name in ("num_blocks", "block_bytes"):
            if isinstance(plan.get(name), int):
                asked[name] = plan[name]
        return (
            Setting("engine", "gnomon", "engine"),
            *(
                Setting(name, value, f"facts.{_FACT_NAMES.get(name, name)}")
                for name, value in asked.items()
            ),
            Setting("speculation", "none", "facts.speculation"),
        )


_ATTESTED_FLAGS = frozenset(
    {
        *("block_size", "dtype", "enable_prefix_caching", "index_cache_dtype", "kv_cache_dtype"),
        *("max_model_len", "max_num_batched_tokens", "max_num_seqs", "num_blocks", "seed"),
    }
)
_FACT_NAMES = {"dtype": "compute_dtype"}


def _layout(value: FlagValue, auto: str = "bf16") -> str:
    return auto if value == "auto" else str(value)


def flag_values(recipe: Recipe) -> dict[str, FlagValue]:
    """The recipe's flags without their reasons, in the schema's order; unset ones left out."""
    flags = recipe.engine.flags
    present = ((name, getattr(flags, name)) for name in type(flags).model_fields)
    return {name: flag.value for name, flag in present if flag is not None}


def render_flags(flags: Mapping[str, FlagValue]) -> list[str]:
    """Flag values as command-line arguments: ``--kv-cache-dtype mxfp4``, ``--no-...`` if false."""
    argv: list[str] = []
    for name, value in flags.items():
        option = name.replace("_", "-")
        if value is True:
            argv.append(f"--{option}")
        elif value is False:
            argv.append(f"--no-{option}")
        else:
            argv.extend((f"--{option}", str(value)))
    return argv


ADAPTERS: dict[str, EngineAdapter] = {"gnomon": GnomonAdapter()}
