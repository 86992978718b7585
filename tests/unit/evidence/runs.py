"""Small sealed runs with real manifests and verdicts, made in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gnomon.harness.evidence import folder as names
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.manifest import (
    BuildRecord,
    ClientRecord,
    LaunchRecord,
    Manifest,
    RunState,
    content_key,
)
from gnomon.harness.evidence.verdicts import (
    Check,
    CheckState,
    Figure,
    Scope,
    VerdictKind,
    Verdicts,
    verdict,
)
from gnomon.harness.telemetry.host import HostFacts

HOST = HostFacts(
    hostname="h", system="s", distribution="d", cpu="c", cpus=2, memory_bytes=1 << 30, gpus=()
)
RECIPE = {"name": "x", "id": "x-c1", "scope": "smoke", "evals": [], "replay": {"seed": 1}}


def manifest(**changes: Any) -> Manifest:
    """A manifest in which everything is known."""
    fields: dict[str, Any] = {
        "run_id": "r",
        "state": RunState.COMPLETE,
        "started": "2026-01-01T00:00:00.000Z",
        "recipe_source": "recipes/x.yaml",
        "recipe_sha256": "0" * 64,
        "recipe": RECIPE,
        "launch": LaunchRecord(argv=("/a/python", "--port", "1"), env={}, inherited_env={}),
        "build": BuildRecord(version="0.1.0", source_sha256="a" * 64),
        "clients": {"aiperf": ClientRecord(lock_sha256="b" * 64, versions={})},
        "host": HOST,
    }
    return Manifest.model_validate({**fields, **changes})


def verdicts(**states: CheckState) -> Verdicts:
    """Three verdicts: integration and performance passed, quality not run, unless told."""
    chosen = {"integration": "passed", "quality": "not_run", "performance": "passed", **states}

    def make(kind: VerdictKind) -> Any:
        state = CheckState(chosen[kind])
        figure = Figure(
            metric="ttft_ms.p50",
            value=12.5,
            unit="ms",
            n=40,
            scope=Scope.SMOKE,
            no_interval_because="1 session tree, 8 are needed",
        )
        figures = (figure,) if kind is VerdictKind.PERFORMANCE else ()
        check = Check(
            name="all", state=state, evidence="seen", scope=Scope.SMOKE, n=1, figures=figures
        )
        return verdict(kind, [check], "A sentence.")

    return Verdicts(**{kind.value: make(kind) for kind in VerdictKind})


def sealed_run(
    root: Path, *, seed: int = 1, of: Verdicts | None = None, **changes: Any
) -> RunFolder:
    """A sealed run with a log, verdicts and a content key made of its seed."""
    run = RunFolder.create(root, "x")
    run.write_text(names.SERVER_LOG, f"started with seed {seed}\n")
    run.write_json(names.VERDICTS, (of or verdicts()).model_dump(mode="json"))
    key = content_key({"recipe": {"seed": seed}, "argv": ["python", "--port", "*"]})
    run.seal(manifest(**{"run_id": run.path.name, "content_key": key, **changes}))
    return run
