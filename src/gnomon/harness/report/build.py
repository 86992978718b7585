"""``report.html``: one file, no script, nothing loaded from anywhere."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

import jinja2
from markupsafe import Markup

from gnomon.harness.evals.model import Outcome
from gnomon.harness.evidence import folder as names
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.verdicts import CheckState, Figure
from gnomon.harness.report.view import API_TITLES, OUTCOME_LABELS, Page, pretty_json, read_page

_STATE_TONES = {
    CheckState.PASSED: "good",
    CheckState.FAILED: "bad",
    CheckState.NOT_RUN: "open",
    CheckState.NOT_APPLICABLE: "calm",
}


def render_report(folder: RunFolder) -> Path:
    """Render a run folder's page from its files.

    Raises:
        RunFolderError: the folder cannot be read.
    """
    folder.write_text(names.REPORT, render_page(read_page(folder)))
    return folder.path / names.REPORT


def render_page(page: Page) -> str:
    """The page as HTML text."""
    resources = files("gnomon.harness.report")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (resources / name).read_text(encoding="utf-8")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        number=number,
        bytes=byte_size,
        words=lambda text: str(text).replace("_", " "),
        uncertainty=uncertainty,
        pretty=pretty_json,
        shell=shell_lines,
        seconds=lambda value: f"{value:.1f} s" if value is not None else "–",
    )
    style = (resources / "report.css").read_text(encoding="utf-8")
    return environment.get_template("report.html.jinja").render(
        page=page,
        style=Markup(style),
        Markup=Markup,
        state_tones=_STATE_TONES,
        api_titles=API_TITLES,
        outcome_labels=OUTCOME_LABELS,
        outcome_tone=lambda outcome: outcome_tone(outcome, page.random_weights),
    )


def outcome_tone(outcome: Outcome, random_weights: bool) -> str:
    """Colour of an outcome: what random weights answer is neither a merit nor a fault."""
    if not outcome.is_answer:
        return "bad"
    if random_weights:
        return "calm"
    return "good" if outcome is Outcome.PASS else "open"


def uncertainty(figure: Figure) -> str:
    """A figure's interval in words, or why it has none."""
    interval = figure.interval
    if interval is None:
        return f"no interval: {figure.no_interval_because}"
    factor, unit = (100, " %") if figure.unit == "fraction" else (1, f" {figure.unit}")
    low, high = number(interval.low * factor), number(interval.high * factor)
    return f"{interval.level:.0%} interval {low} to {high}{unit}, {interval.method}"


def number(value: float) -> str:
    """A number with three significant digits, thousands separated."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def byte_size(value: float | None) -> str:
    """Bytes in binary units, with the exact count where it is short."""
    if value is None:
        return "unknown"
    size, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{value:,} B" if unit == "B" else f"{size:.1f} {unit}"


def shell_lines(argv: tuple[str, ...]) -> str:
    """A command line as one would type it, an option a line."""
    lines: list[str] = []
    for argument in argv:
        quoted = shlex.quote(argument)
        if lines and not argument.startswith("--"):
            lines[-1] += f" {quoted}"
        else:
            lines.append(quoted)
    return " \\\n  ".join(lines)
