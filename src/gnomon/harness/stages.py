"""The stages of a run, each a function of the run that leaves its findings on it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import httpx
from pydantic import TypeAdapter

from gnomon.harness.clients.catalogue import AIPERF, BFCL
from gnomon.harness.clients.environment import environment
from gnomon.harness.errors import StageFailed, TeardownIncomplete
from gnomon.harness.evals.bfcl import run_bfcl
from gnomon.harness.evals.manifest import load_manifest
from gnomon.harness.evals.model import SuiteResult
from gnomon.harness.evals.spec import BfclSpec
from gnomon.harness.evidence import folder as names
from gnomon.harness.evidence.keys import PlannedSuite, key_inputs
from gnomon.harness.evidence.manifest import ClientRecord, LaunchRecord, content_key
from gnomon.harness.evidence.proven import find_proven, reused_from
from gnomon.harness.evidence.provenance import redact_argv, redact_env, relevant_env
from gnomon.harness.evidence.raw import save_replay
from gnomon.harness.launch.attest import attest
from gnomon.harness.launch.ports import free_port
from gnomon.harness.launch.preflight import check_clients, check_disk, require
from gnomon.harness.launch.probes import client_for
from gnomon.harness.launch.readiness import HealthWatch, wait_until_healthy
from gnomon.harness.launch.supervisor import Server, describe_exit
from gnomon.harness.nouns import ServerAddress
from gnomon.harness.replay.aiperf import run_replay
from gnomon.harness.report.build import render_report
from gnomon.harness.run import Run, StageEnded

SUITES_JSON: TypeAdapter[list[SuiteResult]] = TypeAdapter(list[SuiteResult])


def eval_stage(spec: BfclSpec) -> str:
    """Name of the stage that runs one suite through one API."""
    return f"{spec.suite}:{spec.api}"


def bring_up(run: Run) -> None:
    """Preflight, launch and attestation: nothing is loaded before all three hold."""
    with run.stage("preflight") as record:
        _preflight(run)
        record.detail = f"{len(run.seen.preflight)} checks passed"
    with run.stage("launch") as record:
        ready_s = _launch(run)
        record.detail = f"healthy after {ready_s:.1f} s"
    with run.stage("attest") as record:
        _attest(run)
        record.detail = f"{len(run.seen.attestation)} checks passed"


def look_up(run: Run) -> None:
    """Ask the store for a valid run of this very content key; the load then need not be repeated.

    It is asked after attestation, because only the running server can say which model it serves.
    """
    if run.reuse is None:
        return
    with run.stage("reuse") as record:
        suites = [
            PlannedSuite(spec.suite, spec.api, load_manifest(spec.suite).sha256)
            for spec in run.checked.point.evals
        ]
        inputs = key_inputs(run.manifest, run.info, suites)
        if inputs is None:
            raise StageFailed("the server does not say which model it serves, so there is no key")
        key = content_key(inputs)
        found = find_proven(run.reuse, key.sha256)
        if found.run is None:
            passed_over = "".join(f"; passed over {each}" for each in found.passed_over)
            record.detail = f"no valid run has the key {key.sha256[:16]}{passed_over}"
            return
        run.manifest.content_key = key
        run.manifest.reused = reused_from(found.run)
        record.detail = f"already proven by {found.run.path.name}: nothing is measured again"


def load(run: Run) -> None:
    """Replay and evaluations; one that fails does not keep the others from running."""
    assert run.server is not None
    point = run.checked.point
    adapter = run.checked.adapter
    with HealthWatch(run.server, adapter.health_path, run.cancel):
        if point.replay is not None:
            with _going_on_unless_cancelled(run), run.stage("replay") as record:
                record.detail = _replay(run)
        for spec in point.evals:
            with _going_on_unless_cancelled(run), run.stage(eval_stage(spec)) as record:
                record.detail = _evaluate(run, spec)
        _save_metrics(run, names.METRICS_AFTER)


@contextlib.contextmanager
def _going_on_unless_cancelled(run: Run) -> Any:
    """Let the next stage run after one that failed by itself, not after a cancel."""
    try:
        yield
    except StageEnded:
        if run.cancel.event.is_set():
            raise


def _preflight(run: Run) -> None:
    point = run.checked.point
    run.display.progress("disk and clients")
    needed = [AIPERF.name] * (point.replay is not None) + [BFCL.name] * bool(point.evals)

    def describe(name: str) -> str:
        found = environment(name)
        run.manifest.clients[name] = ClientRecord(
            lock_sha256=found.lock_sha256, versions=dict(found.versions)
        )
        return f"installed, lock {found.lock_sha256[:16]}"

    checks = (
        check_disk(run.folder.path, point.scope),
        *check_clients(needed, describe, point.scope),
    )
    run.seen.preflight = checks
    require(checks)


def _launch(run: Run) -> float:
    point, adapter = run.checked.point, run.checked.adapter
    address = ServerAddress("127.0.0.1", free_port(), model=point.model.served_name)
    command = adapter.serve(point, address)
    run.manifest.launch = LaunchRecord(
        argv=redact_argv(command.argv),
        env=redact_env(command.env),
        inherited_env=relevant_env(),
    )
    run.folder.save_manifest(run.manifest)
    server = Server(command, address, run.folder.path / names.SERVER_LOG, run.cancel)
    run.server = server
    server.start()
    run.manifest.launch.pid = server.pid
    run.folder.save_manifest(run.manifest)
    ready_s = wait_until_healthy(
        server, adapter.health_path, point.deadlines.ready_s, run.cancel, run.display.progress
    )
    run.seen.ready_s = ready_s
    return ready_s


def _attest(run: Run) -> None:
    assert run.server is not None
    point, adapter = run.checked.point, run.checked.adapter
    attestation = attest(
        run.server.address,
        adapter.info_path,
        adapter.settings(point, run.checked.plan.plan),
        point.deadlines.attest_s,
        point.scope,
        run.cancel,
        run.display.progress,
    )
    run.seen.attestation = attestation.checks
    run.info = dict(attestation.info)
    run.folder.write_json(
        names.ATTESTATION,
        {
            "checks": [check.model_dump(mode="json") for check in attestation.checks],
            "info": run.info,
            "raw": dict(attestation.raw),
        },
    )
    attestation.require()
    _save_metrics(run, names.METRICS_BEFORE)


def _replay(run: Run) -> str:
    assert run.server is not None
    spec = run.checked.point.replay
    assert spec is not None
    out = run.folder.path / "replay"
    out.mkdir()
    tokenizer = run.checked.plan.model_dir
    if tokenizer is None:
        raise StageFailed(
            "the plan does not say where the model's files are, so the load client cannot count "
            "tokens with its tokenizer; give model.path as a directory"
        )
    result = run_replay(
        spec, run.server.address, tokenizer, out, run.display.progress, run.cancel.event
    )
    run.seen.replay = result
    save_replay(run.folder, result)
    run.cancel.check()
    if result.reason is not None:
        raise StageFailed(result.reason)
    counts = result.counts
    return f"{counts.completed} of {counts.expected} requests in {result.duration_s:.1f} s"


def _evaluate(run: Run, spec: BfclSpec) -> str:
    assert run.server is not None
    out = run.folder.path / "evals" / f"{spec.suite}-{spec.api}"
    out.mkdir(parents=True)
    address = run.server.address
    result = run_bfcl(spec, address, address.model, out, run.display.progress, run.cancel.event)
    run.seen.suites.append(result)
    run.folder.write_json(names.EVALS, SUITES_JSON.dump_python(run.seen.suites, mode="json"))
    run.cancel.check()
    answered = result.expected - sum(result.errors_by_class.values())
    if result.problems:
        raise StageFailed("; ".join(result.problems))
    return f"{answered} of {result.expected} cases answered, {result.passed} passed"


def _save_metrics(run: Run, name: str) -> None:
    """Keep the server's metrics page; a server without one is still worth measuring."""
    assert run.server is not None
    with (
        contextlib.suppress(httpx.HTTPError),
        client_for(run.server.address, 5.0) as client,
    ):
        response = client.get("/metrics")
        if response.status_code == 200:
            run.folder.write_text(name, response.text)


def tear_down(run: Run) -> None:
    """End the server and prove that nothing of it is left."""
    if run.server is None or run.server.pid is None:
        run.skip("teardown", "nothing was started")
        return
    with run.stage("teardown") as record:
        run.display.progress("asking the server to end")
        result = run.server.stop(run.checked.point.deadlines.stop_s)
        run.seen.teardown = result
        if not result.clean:
            left = ", ".join(str(remnant) for remnant in result.remnants) or "its port is open"
            raise TeardownIncomplete(f"still there after SIGKILL: {left}")
        code = describe_exit(result.exit_code) if result.exit_code is not None else "no exit code"
        record.detail = f"{code}, nothing left"


def publish(run: Run) -> Path | None:
    """Write key, report and hashes; a report that fails to render fails the run, not its data."""
    if run.manifest.reused is None:
        inputs = key_inputs(run.manifest, run.info, run.seen.suites)
        run.manifest.content_key = content_key(inputs) if inputs is not None else None
    path: Path | None = None
    run.settle()
    with contextlib.suppress(StageEnded), run.stage("report"):
        run.folder.record(run.manifest)
        path = render_report(run.folder)
    run.settle()
    run.folder.seal(run.manifest)
    return path
