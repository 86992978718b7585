"""Runs a BFCL suite through bfcl-eval's stock handlers and accounts for every case of it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gnomon.harness.evals.bfcl_account as accounting
from gnomon.harness.clients.environment import ClientEnvironment, environment
from gnomon.harness.clients.process import Ended, run_to_end, tail
from gnomon.harness.evals.bfcl_files import BfclFiles, read_files
from gnomon.harness.evals.manifest import Manifest, load_manifest
from gnomon.harness.evals.model import SuiteResult
from gnomon.harness.evals.spec import BfclSpec
from gnomon.harness.nouns import ServerAddress

Progress = Callable[[str], None]

WORKER = Path(__file__).with_name("bfcl_worker.py")
LOG = "bfcl_worker.log"

_IMPORT_ALLOWANCE_S = 180.0
_JUDGE_ALLOWANCE_S = 130.0
_PROGRESS_EVERY_S = 0.5


def run_bfcl(
    spec: BfclSpec,
    server: ServerAddress,
    model_name: str,
    out: Path,
    on_progress: Progress,
    cancel: threading.Event | None = None,
) -> SuiteResult:
    """Ask a suite's cases through one API, judge the answers, and count everything.

    Returns also when the worker failed, was cancelled or ran into the deadline; the result then
    holds every case with its class and says what happened in ``problems``. Nothing that was
    started is left running.

    Args:
        spec: which suite, through which API, within which budgets.
        server: whom to ask.
        model_name: the model's name in the requests.
        out: folder for everything the client writes; created.
        on_progress: told about progress, one line at a time.
        cancel: ends the evaluation when set.

    Raises:
        ClientError: bfcl-eval is not installed.
        FileExistsError: ``out`` holds an earlier evaluation.
    """
    client = environment("bfcl-eval")
    manifest = load_manifest(spec.suite)
    root = out / "bfcl"
    root.mkdir(parents=True)
    started = time.monotonic()
    on_progress(f"{len(manifest.ids)} cases through {spec.api}: starting bfcl-eval")
    with tempfile.TemporaryDirectory(prefix="gnomon-bfcl-") as scratch:
        key = Path(scratch) / "key"
        key.touch(mode=0o600)
        key.write_text(server.api_key or "none")
        plan = out / "plan.json"
        plan.write_text(json.dumps(_plan(spec, server, model_name, manifest, key), indent=1))
        ended = run_to_end(
            [str(client.python), "-u", str(WORKER), str(plan.resolve())],
            env=_environment(root, Path(scratch)),
            cwd=Path(scratch),
            log=out / LOG,
            deadline_s=_IMPORT_ALLOWANCE_S + spec.deadline_s + _JUDGE_ALLOWANCE_S,
            cancel=cancel,
            watch=_ProgressOf(root, len(manifest.ids), on_progress).report,
        )
    shutil.rmtree(root / ".file_locks", ignore_errors=True)
    files = read_files(root)
    result = SuiteResult(
        suite=manifest.suite,
        api=spec.api,
        scope=manifest.scope,
        manifest_sha256=manifest.sha256,
        cases=accounting.account(manifest, files),
        duration_s=time.monotonic() - started,
        requested_sampling=accounting.requested_sampling(files),
        versions=_versions(client, files),
        artifacts=tuple(sorted(p.relative_to(out) for p in out.rglob("*") if p.is_file())),
        problems=(
            *_worker_problems(ended, files, spec, out / LOG),
            *accounting.problems(manifest, files),
        ),
    )
    unanswered = sum(result.errors_by_class.values())
    on_progress(
        f"{result.passed} of {result.expected} cases passed, {unanswered} without an answer"
    )
    return result


def _plan(
    spec: BfclSpec, server: ServerAddress, model_name: str, manifest: Manifest, key: Path
) -> dict[str, Any]:
    """What the worker is told; kept in the run folder, so it holds no secret."""
    return {
        "api": spec.api,
        "model": model_name,
        "base_url": server.base_url,
        "api_key_file": str(key),
        "temperature": spec.temperature,
        "threads": spec.threads,
        "request_timeout_s": spec.request_timeout_s,
        "case_timeout_s": spec.case_timeout_s,
        "max_retries": spec.max_retries,
        "deadline_s": spec.deadline_s,
        "cases": {category: list(ids) for category, ids in manifest.cases.items()},
    }


def _environment(root: Path, scratch: Path) -> dict[str, str]:
    """A small environment of its own: nothing of the caller's can configure the client."""
    kept = {
        name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ
    }
    return {
        **kept,
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "BFCL_PROJECT_ROOT": str(root.resolve()),
        "OPENAI_API_KEY": "unused",
        "NO_PROXY": "*",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONIOENCODING": "utf-8",
    }


def _versions(client: ClientEnvironment, files: BfclFiles) -> dict[str, str]:
    return {**files.packages, "lock_sha256": client.lock_sha256}


def _worker_problems(ended: Ended, files: BfclFiles, spec: BfclSpec, log: Path) -> Iterator[str]:
    """How asking and judging went wrong, if they did."""
    if ended.how == "cancelled":
        yield "the evaluation was cancelled"
        return
    if ended.how == "deadline":
        yield "bfcl-eval's worker did not end within its budget and was stopped"
        return
    asked, judged = files.status.get("ask"), files.status.get("judge")
    if asked is None or judged is None:
        yield f"bfcl-eval's worker ended with exit code {ended.code}; its log ends:\n{tail(log)}"
        return
    if asked["how"] == "deadline":
        yield f"the suite's budget of {spec.deadline_s:g} s was used up before all cases ended"
    elif asked["code"] != 0:
        yield f"asking ended with exit code {asked['code']}; the log ends with:\n{tail(log)}"
    if judged["how"] != "exited" or judged["code"] != 0:
        yield f"judging ended with exit code {judged['code']}; the log ends with:\n{tail(log)}"


class _ProgressOf:
    """Tells how many cases have a row."""

    def __init__(self, root: Path, expected: int, on_progress: Progress) -> None:
        self._results = root / "result"
        self._expected = expected
        self._tell = on_progress
        self._next = 0.0
        self._last = 0

    def report(self) -> None:
        """Count rows, at most twice a second, and say so if there are more."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _PROGRESS_EVERY_S
        rows = sum(path.read_bytes().count(b"\n") for path in self._results.rglob("*_result.json"))
        if rows != self._last:
            self._last = rows
            self._tell(f"{rows} of {self._expected} cases answered")
