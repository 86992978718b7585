"""Replays a trace set through AIPerf and accounts for every request of it."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon.harness.clients.environment import ClientEnvironment, environment
from gnomon.harness.clients.process import Ended, run_to_end, tail
from gnomon.harness.nouns import ServerAddress
from gnomon.harness.replay.consistency import findings
from gnomon.harness.replay.counters import cache_hits_between, read_metrics_page
from gnomon.harness.replay.parse import Export, read_export
from gnomon.harness.replay.results import CacheHits, ReplayCounts, ReplayResult, RequestRecord
from gnomon.harness.replay.series import time_slices
from gnomon.harness.replay.spec import ReplaySpec
from gnomon.harness.replay.tokenizer import lay_out_tokenizer
from gnomon.harness.replay.traces import TraceSet, write_traces

Progress = Callable[[str], None]

RECORDS = "profile_export.jsonl"
AGGREGATE = "profile_export_aiperf.json"
_MASK = "***"
_STRIPPED_PREFIXES = ("AIPERF_", "HF_", "HUGGING_FACE", "TRANSFORMERS_", "OPENAI_", "GNOMON_")
_STRIPPED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def run_replay(
    spec: ReplaySpec,
    server: ServerAddress,
    tokenizer_dir: Path,
    out: Path,
    on_progress: Progress,
    cancel: threading.Event | None = None,
) -> ReplayResult:
    """Replay a generated trace set against a server that is ready.

    Returns also when the client failed, was cancelled or ran into the deadline: the result then
    says so and holds every record there is. Nothing the client started is left running.

    Args:
        spec: what to replay and how long it may take.
        server: whom to ask.
        tokenizer_dir: folder with the served model's ``tokenizer.json``.
        out: folder for the traces and everything the client writes; created.
        on_progress: told about progress, one line at a time.
        cancel: ends the replay when set.

    Raises:
        ClientError: AIPerf is not installed.
        TokenizerMissing: the tokenizer folder holds none.
        FileExistsError: ``out`` holds an earlier replay.
    """
    client = environment("aiperf")
    out.mkdir(parents=True, exist_ok=True)
    traces = write_traces(spec.traces, out / "traces")
    export = out / "aiperf"
    export.mkdir()
    on_progress(f"{traces.sessions} sessions, {len(traces.requests)} requests")
    with tempfile.TemporaryDirectory(prefix="gnomon-replay-") as scratch:
        tokenizer = lay_out_tokenizer(tokenizer_dir, Path(scratch) / "hf")
        argv = render_argv(spec, server, traces, tokenizer, client, export)
        extra = render_env(spec, Path(scratch))
        before = _keep(read_metrics_page(server), out / "server_metrics_before.prom")
        progress = _ProgressOf(export, len(traces.requests), on_progress)
        ended = run_to_end(
            argv,
            env={**_inherited_env(), **extra},
            cwd=Path(scratch),
            log=out / "aiperf.log",
            deadline_s=spec.deadline_s,
            cancel=cancel,
            watch=progress.report,
        )
    after = _keep(read_metrics_page(server), out / "server_metrics_after.prom")
    result = _account(
        _Evidence(
            spec=spec,
            traces=traces,
            argv=tuple(_MASK if server.api_key and a == server.api_key else a for a in argv),
            env=extra,
            ended=ended,
            server_cache=cache_hits_between(before, after),
            client=client,
        ),
        out,
    )
    on_progress(
        f"{result.counts.completed} of {result.counts.expected} requests completed, "
        f"{result.counts.errored} errors, {result.counts.cancelled} cancelled"
    )
    return result


def render_argv(
    spec: ReplaySpec,
    server: ServerAddress,
    traces: TraceSet,
    tokenizer: str,
    client: ClientEnvironment,
    export: Path,
) -> list[str]:
    """AIPerf's command line; every choice that the result depends on is on it."""
    argv = [str(client.python), "-m", "aiperf", "profile"]
    argv += ["--model", server.model, "--url", server.origin]
    argv += ["--endpoint-type", "chat", "--streaming"]
    argv += ["--custom-dataset-type", "weka_trace", "--input-file", str(traces.folder.resolve())]
    # Sessions, not requests: with a request count the client stops in the middle of a session.
    argv += ["--conversation-num", str(traces.sessions)]
    argv += ["--concurrency", str(spec.concurrency)]
    argv += ["--tokenizer", tokenizer, "--use-server-token-count"]
    argv += ["--extra-inputs", "ignore_eos:true"]  # answers have the length the trace asks for
    argv += ["--random-seed", str(spec.random_seed)]
    argv += ["--request-timeout-seconds", f"{spec.request_timeout_s:g}"]
    argv += ["--slice-duration", f"{spec.slice_s:g}"]
    argv += ["--server-metrics", server.metrics_url]
    argv += ["--no-gpu-telemetry", "--ui", "none"]
    argv += ["--artifact-dir", str(export.resolve())]
    if server.api_key:
        argv += ["--api-key", server.api_key]
    return argv


def render_env(spec: ReplaySpec, scratch: Path) -> dict[str, str]:
    """Variables set for AIPerf: offline, its own tokenizer cache, no cache shared between runs."""
    return {
        "HF_HOME": str(scratch / "hf"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "AIPERF_DATASET_MMAP_CACHE_ENABLED": "false",
        "AIPERF_DATASET_MMAP_BASE_PATH": str(scratch),
        # Canned assistant turns: AIPerf would send reasoning and answer back joined into one text.
        "AIPERF_DATASET_WEKA_LIVE_ASSISTANT_RESPONSES": "false",
        "AIPERF_SERVER_METRICS_COLLECTION_INTERVAL": f"{spec.scrape_interval_s:g}",
        "NO_PROXY": "*",
        "no_proxy": "*",
    }


def _inherited_env() -> dict[str, str]:
    """The caller's environment without what would configure the client behind the recipe."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_STRIPPED_PREFIXES) and name not in _STRIPPED
    }


def _keep(page: str | None, path: Path) -> str | None:
    if page is not None:
        path.write_text(page)
    return page


class _ProgressOf:
    """Tells how many requests have ended, from the rows the client has written so far."""

    def __init__(self, export: Path, expected: int, on_progress: Progress) -> None:
        self._path = export / RECORDS
        self._expected = expected
        self._tell = on_progress
        self._offset = 0
        self._rows = 0
        self._errors = 0
        self._last = ""

    def report(self) -> None:
        """Read what was appended and say so if anything was."""
        self._read()
        if self._rows == 0:
            line = "preparing prompts" if self._path.exists() else "starting AIPerf"
        else:
            failed = f", {self._errors} failed" if self._errors else ""
            line = f"{self._rows} of {self._expected} requests{failed}"
        if line != self._last:
            self._last = line
            self._tell(line)

    def _read(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as rows:
            rows.seek(self._offset)
            data = rows.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._rows += whole.count(b"\n")
        self._errors += whole.count(b'"error":{')


@dataclass(frozen=True)
class _Evidence:
    """What is known about a replay besides the client's files."""

    spec: ReplaySpec
    traces: TraceSet
    argv: tuple[str, ...]
    env: Mapping[str, str]
    ended: Ended
    server_cache: CacheHits | None
    client: ClientEnvironment


def _account(evidence: _Evidence, out: Path) -> ReplayResult:
    """Put the client's files and what is known besides into one result."""
    export = read_export(out / "aiperf" / RECORDS)
    aggregate = _read_json(out / "aiperf" / AGGREGATE)
    records, ended, spec = export.records, evidence.ended, evidence.spec
    client_cache = cached_by_usage(records)
    cancelled_by_client = bool(aggregate and aggregate.get("was_cancelled"))
    return ReplayResult(
        argv=evidence.argv,
        env=evidence.env,
        exit_code=ended.code if ended.how == "exited" else None,
        was_cancelled=ended.how != "exited" or cancelled_by_client,
        reason=_reason(ended, spec, cancelled_by_client, out / "aiperf.log"),
        wall_s=ended.wall_s,
        duration_s=max((r.end_s for r in records), default=0.0),
        records=records,
        counts=count(export, len(evidence.traces.requests)),
        slices=time_slices(records, spec.slice_s),
        slice_s=spec.slice_s,
        client_cache=client_cache,
        server_cache=evidence.server_cache,
        findings=findings(
            export, aggregate, evidence.traces.requests, client_cache, evidence.server_cache
        ),
        versions={
            "aiperf": evidence.client.versions["aiperf"],
            "lock_sha256": evidence.client.lock_sha256,
            "traces_sha256": evidence.traces.sha256,
        },
        artifacts=tuple(sorted(p.relative_to(out) for p in out.rglob("*") if p.is_file())),
    )


def count(export: Export, expected: int) -> ReplayCounts:
    """Each measured row is exactly one of completed, errored and cancelled."""
    records = export.records
    return ReplayCounts(
        expected=expected,
        recorded=len(records),
        completed=sum(r.completed for r in records),
        errored=sum(r.error is not None and not r.cancelled for r in records),
        cancelled=sum(r.cancelled for r in records),
        warmup=export.warmup,
    )


def cached_by_usage(records: tuple[RequestRecord, ...]) -> CacheHits | None:
    """Cached prompt tokens as the server's usage tells them; None if it never does."""
    told = [r for r in records if r.completed and r.cached_tokens is not None]
    if not told:
        return None
    return CacheHits(
        hit_tokens=sum(r.cached_tokens or 0 for r in told),
        queried_tokens=sum(r.input_tokens or 0 for r in told),
        source=f"usage of {len(told)} of {sum(r.completed for r in records)} completed requests",
    )


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        loaded = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return loaded if isinstance(loaded, dict) else None


def _reason(ended: Ended, spec: ReplaySpec, cancelled_by_client: bool, log: Path) -> str | None:
    """Why the replay did not run to its end, None if it did."""
    if ended.how == "cancelled":
        return "the replay was cancelled"
    if ended.how == "deadline":
        return f"the replay did not end within its deadline of {spec.deadline_s:g} s"
    if ended.code != 0:
        return f"AIPerf ended with exit code {ended.code}; its log ends with:\n{tail(log)}"
    if cancelled_by_client:
        return "AIPerf says that it cancelled the run; see aiperf.log"
    return None
