"""The inputs of a run's content key: everything that, if changed, makes it another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gnomon.harness.evals.model import SuiteResult
from gnomon.harness.evidence.manifest import Manifest

_LABELS = frozenset({"id", "name", "arm", "description", "blockers"})
"""What a point is called, and what was said of it: the same measurement under another name."""
_PER_RUN_OPTIONS = frozenset({"--port"})


def key_inputs(
    manifest: Manifest, info: Mapping[str, Any], suites: Sequence[SuiteResult]
) -> dict[str, Any] | None:
    """Inputs of the key, or None while some of them are unknown.

    Left out on purpose: the recipe's commentary, the port, the interpreter's place on disk, and
    every result.

    Args:
        manifest: of a run whose server was attested.
        info: the server's description of itself.
        suites: every evaluation that ran; their manifests are data of the run.
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
