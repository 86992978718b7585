"""The manifest of a run: what ran, on what, when, and the hash of everything it left."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gnomon.harness.evidence.atomic import canonical_json, sha256_of
from gnomon.harness.telemetry.host import HostFacts

SCHEMA_VERSION = 1


class RunState(StrEnum):
    """Where a run is; every state but RUNNING is final."""

    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class StageState(StrEnum):
    """Where a stage is."""

    RUNNING = "running"
    COMPLETE = "complete"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    SKIPPED = "skipped"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StageRecord(_Record):
    """One stage on the run's clock.

    Attributes:
        name: of the stage.
        state: where it is or how it ended.
        started: UTC, ISO 8601.
        ended: UTC, None while it runs.
        start_s: seconds after the run's start, on a monotonic clock.
        duration_s: None while it runs.
        detail: what it found, or why it failed.
    """

    name: str
    state: StageState
    started: str
    ended: str | None = None
    start_s: float
    duration_s: float | None = None
    detail: str = ""


class Artifact(_Record):
    """A file of the run folder."""

    sha256: str
    bytes: int


class LaunchRecord(_Record):
    """How the server was started.

    Attributes:
        argv: rendered command line.
        env: variables the harness added, secrets redacted.
        inherited_env: inherited variables that can change what a server does, secrets redacted.
        pid: of the first process, which leads its own process group; None before it started.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    inherited_env: dict[str, str]
    pid: int | None = None


class BuildRecord(_Record):
    """Which source ran.

    Attributes:
        version: of the package.
        source_sha256: over every file of the installed package: exact even when nothing is
            committed, and without any version control.
        commit: of the checkout the package runs from, None outside one.
        dirty: whether tracked or untracked source files differ from that commit; None outside.
    """

    version: str
    source_sha256: str
    commit: str | None = None
    dirty: bool | None = None


class ClientRecord(_Record):
    """A client environment: the hash of its lock file and what is in it."""

    lock_sha256: str
    versions: dict[str, str]


class ContentKey(_Record):
    """The identity of a run's inputs.

    Attributes:
        sha256: of the canonical JSON of ``inputs``.
        inputs: everything that, if changed, makes another run of it.
    """

    sha256: str
    inputs: dict[str, Any]


class Reused(_Record):
    """The run that measured the same content key before, and stands for this one."""

    run_id: str
    manifest_sha256: str


class Manifest(_Record):
    """The contents of ``manifest.json``.

    Attributes:
        schema_version: of this file.
        run_id: name of the run folder.
        state: where the run is.
        failed_stage: the stage that ended the run early, None if none did.
        reason: why, in sentences.
        started: UTC.
        ended: UTC, None while it runs.
        recipe_source: file the recipe was read from.
        recipe_sha256: of that file's bytes.
        recipe: resolved, every default filled in.
        plan_argv: how the planner was asked.
        plan: its numbers.
        launch: how the server was started.
        build: which source ran.
        versions: of Python and of the packages the harness itself depends on.
        clients: environments the recipe used, by name.
        host: the machine.
        content_key: identity of the inputs, once all of them are known.
        reused: the run that is used instead of measuring again, None if this one measured.
        stages: in order.
        artifacts: every other file of the folder, by relative path.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    state: RunState = RunState.RUNNING
    failed_stage: str | None = None
    reason: str = ""
    started: str
    ended: str | None = None
    recipe_source: str
    recipe_sha256: str
    recipe: dict[str, Any]
    plan_argv: tuple[str, ...] = ()
    plan: dict[str, Any] = Field(default_factory=dict)
    launch: LaunchRecord | None = None
    build: BuildRecord
    versions: dict[str, str] = Field(default_factory=dict)
    clients: dict[str, ClientRecord] = Field(default_factory=dict)
    host: HostFacts
    content_key: ContentKey | None = None
    reused: Reused | None = None
    stages: list[StageRecord] = Field(default_factory=list)
    artifacts: dict[str, Artifact] = Field(default_factory=dict)


def content_key(inputs: Mapping[str, Any]) -> ContentKey:
    """Key of a run's inputs: equal exactly when they are."""
    listed = dict(inputs)
    return ContentKey(sha256=sha256_of(canonical_json(listed)), inputs=listed)


def utc_now() -> str:
    """The time as ISO 8601 in UTC, to the millisecond."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
