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
from gnomon.harness.evidence.figures import Withheld, replay_figures, session_tree
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.manifest import Manifest, RunState, StageRecord
from gnomon.harness.evidence.verdicts import CheckState, Figure, Scope, Verdicts
from gnomon.harness.replay.results import ReplayResult
from gnomon.harness.report import charts
from gnomon.harness.report.charts import Level, Points, Steps, time_chart
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
class Chart:
    """A drawing with what it is about.

    Attributes:
        title: of the drawing.
        svg: inline.
        n: observations in it.
        note: what a dot or a step is.
        keys: legend: colour variable and words.
    """

    title: str
    svg: str
    n: int
    note: str
    keys: tuple[tuple[str, str], ...] = ()


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


def read_page(folder: RunFolder) -> Page:
    """Read a run folder.

    Raises:
        RunFolderError: it is no run folder, or a file of it is damaged.
    """
    manifest = folder.load_manifest()
    verdicts = folder.load_verdicts()
    attestation = folder.read_json(names.ATTESTATION) or {}
    info = attestation.get("info") or {}
    replay = _typed(folder, names.REPLAY, TypeAdapter(ReplayResult))
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


def replay_charts(replay: ReplayResult) -> tuple[Chart, ...]:
    """TTFT, ITL, throughput, requests in flight and cache hits over time."""
    served = [record for record in replay.records if record.completed]
    until = replay.duration_s
    roots = [record for record in served if record.agent_depth == 0]
    agents = [record for record in served if record.agent_depth > 0]
    both = (("--series-1", "root conversations"), ("--series-2", "sub-agents"))
    drawings: list[Chart] = []
    groups = ((roots, charts.FIRST, "o"), (agents, charts.SECOND, "D"))

    ttft = [
        Points(
            [r.start_s + r.ttft_ms / 1e3 for r in group if r.ttft_ms is not None],
            [r.ttft_ms for r in group if r.ttft_ms is not None],
            colour,
            marker,
        )
        for group, colour, marker in groups
    ]
    drawings.append(_points_chart("ttft", "Time to first token", ttft, "ms", until, both))
    itl = [
        Points(
            [r.end_s for r in group if r.itl_ms is not None],
            [r.itl_ms for r in group if r.itl_ms is not None],
            colour,
            marker,
        )
        for group, colour, marker in groups
    ]
    drawings.append(_points_chart("itl", "Inter-token latency", itl, "ms", until, both))
    starts = [piece.start_s for piece in replay.slices]
    throughput = Steps(
        starts, replay.slice_s, [s.output_tokens_per_s for s in replay.slices], charts.FIRST
    )
    drawings.append(
        Chart(
            "Output throughput",
            time_chart(
                "throughput",
                [throughput],
                "tokens/s",
                label="Output throughput over time",
                until_s=until,
            ),
            len(served),
            f"each step is {replay.slice_s:g} s; a request's tokens are spread over its decoding",
        )
    )
    flight = Steps(starts, replay.slice_s, [s.in_flight for s in replay.slices], charts.THIRD)
    drawings.append(
        Chart(
            "Requests in flight",
            time_chart(
                "flight", [flight], "requests", label="Requests in flight over time", until_s=until
            ),
            len(replay.records),
            f"mean over each {replay.slice_s:g} s",
        )
    )
    cache = _cache_chart(replay, groups, both)
    return (*drawings, cache) if cache is not None else tuple(drawings)


def _points_chart(
    name: str,
    title: str,
    series: Sequence[Points],
    unit: str,
    until: float,
    keys: tuple[tuple[str, str], ...],
) -> Chart:
    svg = time_chart(name, series, unit, label=f"{title} over time", until_s=until)
    n = sum(len(points.y) for points in series)
    return Chart(title, svg, n, "each dot is one request", keys)


def _cache_chart(
    replay: ReplayResult, groups: Sequence[tuple[Any, str, str]], keys: tuple[tuple[str, str], ...]
) -> Chart | None:
    series: list[Points | Level] = []
    n = 0
    for group, colour, marker in groups:
        usable = [r for r in group if r.cached_tokens is not None and r.input_tokens]
        n += len(usable)
        shares = [100.0 * r.cached_tokens / r.input_tokens for r in usable]
        series.append(Points([r.start_s for r in usable], shares, colour, marker))
    cache = replay.client_cache
    if not n or cache is None or cache.rate is None:
        return None
    series.insert(0, Level(100.0 * cache.rate, charts.THIRD))
    svg = time_chart(
        "cache",
        series,
        "% of prompt",
        label="Prefix cache hits",
        until_s=replay.duration_s,
        top=105,
    )
    note = "each dot is one request's prompt; the dashed line is the share over all prompt tokens"
    trees = len({session_tree(record) for record in replay.records})
    return Chart("Prompt tokens from the prefix cache", svg, n, f"{note}; {trees} sessions", keys)


def pretty_json(text: str | None) -> str:
    """JSON text indented for reading; anything else as it is."""
    if not text:
        return ""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
