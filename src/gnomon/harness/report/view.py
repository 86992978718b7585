"""From the files of a run folder to what the page shows; nothing is computed twice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gnomon.harness.errors import RunFolderError
from gnomon.harness.evals.model import Case, Outcome, SuiteResult
from gnomon.harness.evidence import folder as names
from gnomon.harness.evidence.figures import Withheld, replay_figures
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.manifest import Manifest, RunState, StageRecord
from gnomon.harness.evidence.raw import load_replay
from gnomon.harness.evidence.verdicts import CheckState, Figure, Scope, Verdicts
from gnomon.harness.replay.results import ReplayResult
from gnomon.harness.report.replay_charts import Chart, replay_charts
from gnomon.harness.stats.metrics import Metric, metric_of

API_TITLES = {"chat": "Chat Completions", "responses": "Responses"}
OUTCOME_LABELS = {
    Outcome.PASS: "pass",
    Outcome.QUALITY_MISS: "wrong answer",
    Outcome.REQUEST_TIMEOUT: "request timed out",
    Outcome.HTTP_ERROR: "HTTP error",
    Outcome.PROTOCOL_ERROR: "protocol error",
    Outcome.PARSER_EXCEPTION: "parser exception",
    Outcome.BUDGET_EXHAUSTED: "budget exhausted",
    Outcome.NOT_RUN: "not run",
}


@dataclass(frozen=True)
class CaseRow:
    """One case with its result through each API, None where that API did not run it."""

    id: str
    category: str
    by_api: tuple[tuple[str, Case | None], ...]

    @property
    def shown(self) -> Case:
        """The case as some API has it: prompt, tools and answers are the same for all."""
        return next(case for _, case in self.by_api if case is not None)


@dataclass(frozen=True)
class SuiteTable:
    """A suite: its cases in rows, the APIs in columns, never added up across APIs."""

    name: str
    scope: str
    results: tuple[SuiteResult, ...]
    rows: tuple[CaseRow, ...]


@dataclass(frozen=True)
class Tile:
    """The figures of one metric: its percentiles, or its only value."""

    figures: tuple[Figure, ...]

    @property
    def metric(self) -> Metric:
        """Its definition."""
        return metric_of(self.figures[0].metric)


@dataclass(frozen=True)
class Bar:
    """A stage on the run's clock, in percent of the whole."""

    stage: StageRecord
    left: float
    width: float


class Known(dict[str, Any]):
    """What a server said of itself; whatever it left out reads as ``unknown``."""

    def __missing__(self, key: str) -> str:
        """Every engine describes itself differently; the page never fails for it."""
        return "unknown"


@dataclass(frozen=True)
class Page:
    """Everything the template shows."""

    manifest: Manifest
    verdicts: Verdicts | None
    headline: str
    tone: str
    replay: ReplayResult | None
    tiles: tuple[Tile, ...]
    withheld: tuple[Withheld, ...]
    charts: tuple[Chart, ...]
    suites: tuple[SuiteTable, ...]
    facts: Mapping[str, Any]
    info: Mapping[str, Any]
    bars: tuple[Bar, ...]
    total_s: float
    random_weights: bool
    flags: tuple[tuple[str, Mapping[str, Any]], ...]


def read_page(folder: RunFolder) -> Page:
    """Read a run folder.

    Raises:
        RunFolderError: it is no run folder, or a file of it is damaged.
    """
    manifest = folder.load_manifest()
    verdicts = folder.load_verdicts()
    attestation = folder.read_json(names.ATTESTATION) or {}
    info = attestation.get("info") or {}
    replay = load_replay(folder)
    suites = _typed(folder, names.EVALS, TypeAdapter(list[SuiteResult])) or []
    random_weights = manifest.recipe.get("model", {}).get("weights") == "random"
    headline, tone = _headline(manifest, verdicts, random_weights)
    # What follows teardown takes no time worth showing, and this page cannot show its own end.
    bars, total_s = _bars(
        [stage for stage in manifest.stages if stage.name not in ("judge", "report")]
    )
    performance = verdicts.performance.checks if verdicts is not None else ()
    return Page(
        manifest=manifest,
        verdicts=verdicts,
        headline=headline,
        tone=tone,
        replay=replay,
        tiles=_tiles([figure for check in performance for figure in check.figures]),
        withheld=_withheld(manifest, replay),
        charts=replay_charts(replay) if replay is not None and replay.records else (),
        suites=_tables(suites),
        facts=Known(info.get("facts") or {}),
        info=Known(info),
        bars=bars,
        total_s=total_s,
        random_weights=random_weights,
        flags=_flags(manifest.recipe),
    )


def _flags(recipe: Mapping[str, Any]) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Everything the recipe sets for a reason: caches, limits, then the engine's own flags."""
    engine = recipe.get("engine", {})
    groups = (
        *(("kv.", recipe.get("kv")), ("limits.", recipe.get("limits"))),
        *(("", engine.get("flags")), ("env.", engine.get("env"))),
    )
    return tuple(
        (f"{prefix}{name}", flag)
        for prefix, group in groups
        for name, flag in (group or {}).items()
        if flag
    )


def _tiles(figures: Sequence[Figure]) -> tuple[Tile, ...]:
    by_metric: dict[str, list[Figure]] = {}
    for figure in figures:
        by_metric.setdefault(metric_of(figure.metric).id, []).append(figure)
    return tuple(Tile(tuple(group)) for group in by_metric.values())


def _withheld(manifest: Manifest, replay: ReplayResult | None) -> tuple[Withheld, ...]:
    if replay is None or not replay.records:
        return ()
    return replay_figures(replay, Scope(manifest.recipe["scope"])).withheld


def _typed(folder: RunFolder, name: str, adapter: TypeAdapter[Any]) -> Any:
    data = folder.read_json(name)
    if data is None:
        return None
    try:
        return adapter.validate_python(data)
    except ValidationError as error:
        raise RunFolderError(f"{folder.path / name} is damaged: {error}") from None


def _headline(
    manifest: Manifest, verdicts: Verdicts | None, random_weights: bool
) -> tuple[str, str]:
    """The page's first sentence, and its tone: good, bad or open."""
    if manifest.state is RunState.INTERRUPTED:
        return f"Interrupted at the {manifest.failed_stage} stage", "open"
    if manifest.state is RunState.RUNNING:
        return "Still running, or ended without a word", "open"
    if manifest.state is RunState.FAILED or verdicts is None:
        return f"Failed at the {manifest.failed_stage} stage", "bad"
    if verdicts.integration.state is not CheckState.PASSED:
        return "Integration not proven", "bad"
    if manifest.reused is not None:
        return f"Reused: {manifest.reused.run_id} measured the same content key", "good"
    if random_weights:
        return "Integration complete; quality not applicable to this model (random weights)", "good"
    quality = verdicts.quality.state.replace("_", " ")
    return f"Integration complete; quality {quality}", "good"


def _bars(stages: Sequence[StageRecord]) -> tuple[tuple[Bar, ...], float]:
    total = max((stage.start_s + (stage.duration_s or 0.0) for stage in stages), default=0.0)
    scale = 100.0 / total if total > 0 else 0.0
    bars = tuple(
        Bar(stage, stage.start_s * scale, max((stage.duration_s or 0.0) * scale, 0.4))
        for stage in stages
    )
    return bars, total


def _tables(results: Sequence[SuiteResult]) -> tuple[SuiteTable, ...]:
    tables = []
    for name in dict.fromkeys(result.suite for result in results):
        of_suite = tuple(result for result in results if result.suite == name)
        ids = dict.fromkeys(case.id for result in of_suite for case in result.cases)
        by_api = {result.api: {case.id: case for case in result.cases} for result in of_suite}
        rows = []
        for case_id in ids:
            cells = tuple((api, cases.get(case_id)) for api, cases in by_api.items())
            category = next(case.category for _, case in cells if case is not None)
            rows.append(CaseRow(case_id, category, cells))
        tables.append(SuiteTable(name, of_suite[0].scope, of_suite, tuple(rows)))
    return tuple(tables)


def pretty_json(text: str | None) -> str:
    """JSON text indented for reading; anything else as it is."""
    if not text:
        return ""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
