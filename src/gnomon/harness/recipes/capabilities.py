"""The capability matrix: which engine does what on which hardware, as data.

The table is ``capabilities.yaml`` beside this file. A combination that it does not list is refused
with what it does list; one that is known to fail is refused with the known reason.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import yaml
from pydantic import BaseModel, ConfigDict

from gnomon.harness.errors import Problem
from gnomon.harness.recipes.serving import Serving

Names = tuple[str, ...]


class Support(BaseModel):
    """What an engine does on some kinds of hardware.

    Attributes:
        hardware: kinds.
        kv: layouts of keys and values.
        index: layouts of index keys.
        offload: second tiers.
        drafts: methods.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    hardware: Names
    kv: Names
    index: Names
    offload: Names = ()
    drafts: Names = ()


class When(BaseModel):
    """A combination; every condition that is given must hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: Names | None = None
    hardware: Names | None = None
    family: Names | None = None
    precision: Names | None = None
    kv: Names | None = None
    index: Names | None = None
    offload: Names | None = None
    drafts: Names | None = None
    gpus: tuple[int, ...] | None = None
    dp_attention: bool | None = None

    def holds(self, serving: Serving) -> bool:
        """Whether a serving is such a combination."""
        facts = {
            "engine": serving.engine.name,
            "hardware": serving.hardware.name,
            "family": serving.model.family,
            "precision": serving.model.precision,
            "kv": serving.kv_layout,
            "index": serving.index_layout,
            "offload": serving.tier.backend if serving.tier is not None else None,
            "drafts": serving.drafted.method if serving.drafted is not None else None,
            "gpus": serving.topology.total_gpus,
        }
        if self.dp_attention not in (None, serving.topology.dp_attention):
            return False
        return all(
            fact in getattr(self, name)
            for name, fact in facts.items()
            if getattr(self, name) is not None
        )


class KnownFailure(BaseModel):
    """A combination that is known to fail."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    when: When
    because: str
    instead: str


class Capabilities(BaseModel):
    """The matrix.

    Attributes:
        engines: by engine, what it does where.
        refuses: combinations that are known to fail.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    engines: dict[str, tuple[Support, ...]]
    refuses: tuple[KnownFailure, ...] = ()

    @classmethod
    def shipped(cls) -> Capabilities:
        """The table that comes with the package."""
        return _shipped()

    def refusals(self, serving: Serving) -> tuple[Problem, ...]:
        """Every reason why a serving is refused: known failures first, then what is not listed."""
        known = [
            Problem(_path(failure.when), f"{_named(serving)}: {failure.because}.", failure.instead)
            for failure in self.refuses
            if failure.when.holds(serving)
        ]
        return tuple(known) or tuple(self._unlisted(serving))

    def _unlisted(self, serving: Serving) -> list[Problem]:
        engine, hardware = serving.engine.name, serving.hardware.name
        supports = self.engines.get(engine, ())
        support = next((s for s in supports if hardware in s.hardware), None)
        if support is None:
            kinds = [kind for s in supports for kind in s.hardware]
            return [_problem("hardware.name", f"{engine} on {hardware}", kinds)]
        asked = [
            ("kv.layout.value", "caches", serving.kv_layout, support.kv),
            ("kv.index_layout.value", "index keys", serving.index_layout, support.index),
        ]
        if serving.tier is not None:
            asked.append(
                ("offload.backend", "a second tier by", serving.tier.backend, support.offload)
            )
        if serving.drafted is not None:
            asked.append(
                ("speculation.method", "drafts by", serving.drafted.method, support.drafts)
            )
        return [
            _problem(path, f"{engine} on {hardware} with {what} {name}", listed)
            for path, what, name, listed in asked
            if name not in listed
        ]


def _problem(path: str, what: str, listed: list[str] | Names) -> Problem:
    return Problem(
        path,
        f"the capability matrix does not list {what}.",
        f"It lists: {', '.join(listed) or 'none'}.",
    )


def _named(serving: Serving) -> str:
    return f"{serving.engine.name} on {serving.hardware.name}"


def _path(when: When) -> str:
    """Where a recipe says the most telling condition."""
    for name, path in (
        ("offload", "offload.backend"),
        ("drafts", "speculation.method"),
        ("index", "kv.index_layout.value"),
        ("kv", "kv.layout.value"),
        ("dp_attention", "topology.dp_attention"),
        ("gpus", "topology"),
    ):
        if getattr(when, name) is not None:
            return path
    return "engine.name"


@cache
def _shipped() -> Capabilities:
    table = resources.files("gnomon.harness.recipes").joinpath("capabilities.yaml")
    return Capabilities.model_validate(yaml.safe_load(table.read_text(encoding="utf-8")))
