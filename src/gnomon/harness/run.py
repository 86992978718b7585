"""A run: a checked recipe becomes a folder of evidence, whatever happens on the way.

Stages run in order. Each is recorded when it starts and when it ends; the manifest on disk is
therefore right at any moment, also after a power cut. Teardown, verdicts and the report always
come, and the first thing that went wrong is the run's reason.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gnomon.harness.cancel import CancelToken, Cause
from gnomon.harness.display import Display
from gnomon.harness.errors import HarnessError
from gnomon.harness.evidence import folder as names
from gnomon.harness.evidence.atomic import sha256_of
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.judge import judge, judge_reused
from gnomon.harness.evidence.manifest import (
    Manifest,
    RunState,
    StageRecord,
    StageState,
    utc_now,
)
from gnomon.harness.evidence.provenance import build_record, package_versions, redact_argv
from gnomon.harness.evidence.seen import Evidence
from gnomon.harness.evidence.store import Store
from gnomon.harness.evidence.verdicts import CheckState, Verdicts
from gnomon.harness.launch.supervisor import Server
from gnomon.harness.recipes.load import CheckedRecipe
from gnomon.harness.telemetry.host import host_facts


class StageEnded(Exception):
    """A stage did not complete; it is recorded already, this only unwinds to who decides."""


@dataclass
class Run:
    """Everything a run carries from stage to stage.

    Attributes:
        checked: the point and its plan.
        folder: where its evidence goes.
        manifest: as it is now; saved at every change of stage.
        cancel: set by the user, or by the death of the server.
        display: what a person sees.
        reuse: where a valid run of the same content key may stand for this one; None to measure
            whatever there is.
        seen: what the stages found, for the verdicts.
        server: once started.
        info: the server's description of itself.
        verdicts: once judged.
    """

    checked: CheckedRecipe
    folder: RunFolder
    manifest: Manifest
    cancel: CancelToken
    display: Display
    reuse: Store | None = None
    seen: Evidence = field(default_factory=Evidence)
    server: Server | None = None
    info: dict[str, object] = field(default_factory=dict)
    verdicts: Verdicts | None = None
    _origin: float = field(default_factory=time.monotonic)

    @classmethod
    def open(cls, checked: CheckedRecipe, out: Path, cancel: CancelToken, display: Display) -> Run:
        """Create the folder and write the first manifest, state ``running``."""
        folder = RunFolder.create(out, checked.point.name)
        folder.write_text(names.RECIPE, checked.text)
        manifest = Manifest(
            run_id=folder.path.name,
            started=utc_now(),
            recipe_source=str(checked.source),
            recipe_sha256=sha256_of(checked.text.encode("utf-8")),
            recipe=checked.point.model_dump(mode="json"),
            plan_argv=redact_argv(checked.plan.command.argv),
            plan=dict(checked.plan.plan),
            build=build_record(),
            versions=package_versions(),
            host=host_facts(),
        )
        folder.save_manifest(manifest)
        return cls(checked, folder, manifest, cancel, display)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[StageRecord]:
        """Record a stage; what it raises becomes its state and, the first time, the run's reason.

        Raises:
            StageEnded: in place of anything the stage raised.
        """
        record = StageRecord(
            name=name,
            state=StageState.RUNNING,
            started=utc_now(),
            start_s=time.monotonic() - self._origin,
        )
        self.manifest.stages.append(record)
        self.folder.save_manifest(self.manifest)
        self.display.enter(name)
        state, detail = StageState.COMPLETE, ""
        try:
            yield record
        except BaseException as error:
            state, detail = self._explain(error)
            self._first_reason(name, detail)
            raise StageEnded from error
        finally:
            record.state = state
            record.detail = detail or record.detail
            record.ended = utc_now()
            record.duration_s = time.monotonic() - self._origin - record.start_s
            self.folder.save_manifest(self.manifest)
            self.display.leave(name, record.state, record.detail)

    def _explain(self, error: BaseException) -> tuple[StageState, str]:
        """How a stage ended and why; a cancel explains whatever it made fail."""
        if isinstance(error, KeyboardInterrupt):
            self.cancel.cancel(Cause.INTERRUPTED, "interrupted by the user")
        if self.cancel.cause is Cause.INTERRUPTED:
            return StageState.INTERRUPTED, self.cancel.reason
        if self.cancel.cause is Cause.SERVER_DIED:
            return StageState.FAILED, self.cancel.reason
        if isinstance(error, HarnessError):
            return StageState.FAILED, str(error)
        return StageState.FAILED, f"unexpected {type(error).__name__}: {error}"

    def _first_reason(self, stage: str, reason: str) -> None:
        if self.manifest.failed_stage is None:
            self.manifest.failed_stage = stage
            self.manifest.reason = reason

    def skip(self, name: str, why: str) -> None:
        """Record a stage that does not take place."""
        now = utc_now()
        self.manifest.stages.append(
            StageRecord(
                name=name,
                state=StageState.SKIPPED,
                started=now,
                ended=now,
                start_s=time.monotonic() - self._origin,
                duration_s=0.0,
                detail=why,
            )
        )
        self.display.leave(name, StageState.SKIPPED, why)

    def judge(self) -> None:
        """Derive the verdicts from what was seen and write them."""
        self.seen.failed_stage = self.manifest.failed_stage
        self.seen.reason = self.manifest.reason
        point, reused = self.checked.point, self.manifest.reused
        if reused is None:
            self.verdicts = judge(point, self.seen)
        else:
            self.verdicts = judge_reused(point, self.seen, reused)
        self.folder.write_json(names.VERDICTS, self.verdicts.model_dump(mode="json"))

    def settle(self) -> None:
        """Set the final state from what went wrong first, if anything did."""
        if self.cancel.cause is Cause.INTERRUPTED and self.manifest.failed_stage is not None:
            self.manifest.state = RunState.INTERRUPTED
        elif self.manifest.failed_stage is not None:
            self.manifest.state = RunState.FAILED
        else:
            self.manifest.state = RunState.COMPLETE
        self.manifest.ended = utc_now()


@dataclass(frozen=True)
class RunOutcome:
    """What a caller needs to know of a finished run.

    Attributes:
        folder: its evidence.
        report: its page, None if it could not be rendered.
        state: final state of the manifest.
        failed_stage: where it ended early, None if it did not.
        reason: why it is not a success; empty for one.
        verdicts: all three, None if they could not be derived.
        reused: the run that stands for this one, None if it measured for itself.
    """

    folder: Path
    report: Path | None
    state: RunState
    failed_stage: str | None
    reason: str
    verdicts: Verdicts | None
    reused: str | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the run went to its end and its integration verdict passed."""
        if self.verdicts is None or self.state is not RunState.COMPLETE:
            return False
        return self.verdicts.integration.state is CheckState.PASSED


def execute(run: Run) -> RunOutcome:
    """Run every stage of a recipe, and always teardown, verdicts, report and seal.

    Never raises for something that went wrong inside a stage: the outcome says it.
    """
    from gnomon.harness import stages  # the stages import the clients, which need not load earlier

    plan = run.checked.point
    replay = ("replay",) if plan.replay is not None else ()
    evals = tuple(stages.eval_stage(spec) for spec in plan.evals)
    look_up = ("reuse",) if run.reuse is not None else ()
    order = (
        *("preflight", "launch", "attest", *look_up, *replay, *evals),
        *("teardown", "judge", "report"),
    )
    run.display.begin(f"{plan.name} → {run.folder.path.name}", order)
    try:
        with contextlib.suppress(StageEnded):
            stages.bring_up(run)
            stages.look_up(run)
            if run.manifest.reused is None:
                stages.load(run)
    finally:
        with contextlib.suppress(StageEnded):
            stages.tear_down(run)
        with contextlib.suppress(StageEnded), run.stage("judge"):
            run.judge()
        report = stages.publish(run)
        run.display.close()
    return RunOutcome(
        folder=run.folder.path,
        report=report,
        state=run.manifest.state,
        failed_stage=run.manifest.failed_stage,
        reason=run.manifest.reason or _unproven(run.verdicts),
        verdicts=run.verdicts,
        reused=run.manifest.reused.run_id if run.manifest.reused is not None else None,
    )


def _unproven(verdicts: Verdicts | None) -> str:
    """Why an uninterrupted run is not a success: the checks that did not pass."""
    if verdicts is None:
        return "the verdicts could not be derived"
    listed = [
        f"{check.name}: {check.evidence}"
        for state in (CheckState.FAILED, CheckState.NOT_RUN)
        for check in verdicts.integration.with_state(state)
    ]
    return "; ".join(listed)
