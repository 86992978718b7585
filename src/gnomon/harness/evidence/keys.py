"""The inputs of a run's content key: everything that, if changed, makes it another run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gnomon.harness.evidence.atomic import canonical_json
from gnomon.harness.evidence.manifest import Manifest

_LABELS = frozenset({"id", "name", "arm", "description", "blockers"})
"""What a point is called, and what was said of it: the same measurement under another name."""
_PER_RUN_OPTIONS = frozenset({"--port"})


class Suite(Protocol):
    """Which cases are asked, through which API; a result is one, and so is an intention."""

    @property
    def suite(self) -> str:
        """Name of the suite."""
        ...

    @property
    def api(self) -> str:
        """The API it goes through."""
        ...

    @property
    def manifest_sha256(self) -> str:
        """Identity of its list of cases."""
        ...


@dataclass(frozen=True)
class PlannedSuite:
    """A suite before it ran."""

    suite: str
    api: str
    manifest_sha256: str


def key_inputs(
    manifest: Manifest, info: Mapping[str, Any], suites: Sequence[Suite]
) -> dict[str, Any] | None:
    """Inputs of the key, or None while some of them are unknown.

    Left out on purpose: the recipe's commentary, the port, the interpreter's place on disk, and
    every result.

    Args:
        manifest: of a run whose server was attested.
        info: the server's description of itself.
        suites: every evaluation, done or planned; their manifests are data of the run.
    """
    facts = info.get("facts")
    if manifest.launch is None or not isinstance(facts, Mapping):
        return None
    if len(suites) < len(manifest.recipe.get("evals") or ()):
        return None
    return {
        "recipe": without_commentary(unlabelled(manifest.recipe)),
        "argv": stable_argv(manifest.launch.argv),
        "env": {**manifest.launch.inherited_env, **manifest.launch.env},
        "engine": {"name": info.get("engine"), "version": info.get("version")},
        "build_source_sha256": manifest.build.source_sha256,
        "model_fingerprint": facts.get("model_fingerprint"),
        "clients": {name: client.lock_sha256 for name, client in manifest.clients.items()},
        "packages": manifest.versions,
        "suites": {f"{s.suite}:{s.api}": s.manifest_sha256 for s in suites},
        "hardware": manifest.host.hardware_class,
    }


def unlabelled(point: Mapping[str, Any]) -> dict[str, Any]:
    """A point without its own labels; names inside it (of an engine, a router) say what ran."""
    return {key: value for key, value in point.items() if key not in _LABELS}


def without_commentary(recipe: Any) -> Any:
    """The recipe without the sentences that explain its flags."""
    if isinstance(recipe, Mapping):
        return {
            key: without_commentary(value)
            for key, value in recipe.items()
            if not (key == "why" and isinstance(value, str))
        }
    if isinstance(recipe, list | tuple):
        return [without_commentary(item) for item in recipe]
    return recipe


def stable_argv(argv: Sequence[str]) -> list[str]:
    """A command line without what differs between two starts of the same thing."""
    stable: list[str] = [Path(argv[0]).name] if argv else []
    hide_next = False
    for argument in argv[1:]:
        stable.append("*" if hide_next else argument)
        hide_next = argument in _PER_RUN_OPTIONS
    return stable


_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """One input in which two keys differ.

    Attributes:
        path: dotted, with indexes: ``recipe.engine.flags.seed.value``.
        a: value in the first, None where it is absent or null.
        b: value in the second.
        only_in: ``a`` or ``b`` where the other has no such input, else empty.
    """

    path: str
    a: Any
    b: Any
    only_in: str = ""


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Which inputs of two content keys differ; empty exactly when the keys are equal."""
    return tuple(_differences("", dict(a), dict(b)))


def _differences(path: str, a: Any, b: Any) -> Iterator[Difference]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for name in sorted(a.keys() | b.keys()):
            inner = f"{path}.{name}" if path else name
            yield from _differences(inner, a.get(name, _ABSENT), b.get(name, _ABSENT))
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from _differences(f"{path}[{i}]", one, other)
    elif a is _ABSENT:
        yield Difference(path, None, b, "b")
    elif b is _ABSENT:
        yield Difference(path, a, None, "a")
    elif canonical_json(a) != canonical_json(b):
        yield Difference(path, a, b)
