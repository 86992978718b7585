"""Charts as inline SVG whose colours are CSS variables, so one drawing serves light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

WIDTH_IN, HEIGHT_IN = 5.2, 2.3
# Colours that occur nowhere else; each is replaced by a variable of the page's style sheet.
_COLOURS = {
    "#010101": "var(--ink-2)",
    "#010102": "var(--line)",
    "#010103": "var(--series-1)",
    "#010104": "var(--series-2)",
    "#010105": "var(--series-3)",
}
INK, LINE, FIRST, SECOND, THIRD = _COLOURS
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gnomon",
    "font.size": 9,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": LINE,
    "xtick.labelcolor": INK,
    "ytick.color": LINE,
    "ytick.labelcolor": INK,
    "ytick.major.size": 0,
    "xtick.major.size": 3,
}


@dataclass(frozen=True)
class Points:
    """Observations at moments: one dot each."""

    x: Sequence[float]
    y: Sequence[float]
    colour: str
    marker: str = "o"


@dataclass(frozen=True)
class Steps:
    """Values over consecutive slices of equal width; None leaves a gap."""

    starts: Sequence[float]
    width: float
    y: Sequence[float | None]
    colour: str
    filled: bool = True


@dataclass(frozen=True)
class Level:
    """A horizontal line."""

    y: float
    colour: str


def time_chart(
    name: str,
    series: Sequence[Points | Steps | Level],
    unit: str,
    *,
    label: str,
    until_s: float,
    top: float | None = None,
) -> str:
    """Draw series over seconds from the first request.

    Args:
        name: makes the drawing's ids unique in the page.
        series: what to draw, first at the back.
        unit: of the y axis.
        label: for people who cannot see it.
        until_s: end of the x axis.
        top: end of the y axis; from the data if None.

    Returns:
        An ``<svg>`` element without fixed size.
    """
    with matplotlib.rc_context(_STYLE):
        canvas = Canvas(figsize=(WIDTH_IN, HEIGHT_IN))
        axes = canvas.add_subplot()
        for item in series:
            _draw(axes, item)
        axes.set_xlim(0, max(until_s, 0.1))
        axes.margins(y=0.15)
        axes.autoscale_view(scalex=False)
        axes.set_ylim(0, top)
        axes.set_xlabel("seconds after the first request")
        axes.set_ylabel(unit)
        axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(8))
        canvas.tight_layout(pad=0.4)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return inline(buffer.getvalue(), name, label)


def _draw(axes: Axes, item: Points | Steps | Level) -> None:
    if isinstance(item, Points):
        axes.plot(
            list(item.x),
            list(item.y),
            linestyle="none",
            marker=item.marker,
            markersize=5,
            color=item.colour,
            alpha=0.85,
            clip_on=False,
            zorder=3,
        )
    elif isinstance(item, Level):
        axes.axhline(item.y, color=item.colour, linewidth=1.4, linestyle=(0, (4, 3)))
    elif item.starts:
        edges = [*item.starts, item.starts[-1] + item.width]
        values = [float("nan") if value is None else value for value in item.y]
        axes.stairs(values, edges, color=item.colour, linewidth=1.6, fill=False, baseline=None)
        if item.filled:
            axes.stairs(values, edges, color=item.colour, alpha=0.18, fill=True)


def inline(svg: str, name: str, label: str) -> str:
    """Make a drawing safe to place several times in one page.

    The XML prologue and the metadata block go, ids get the drawing's name, colours become
    variables, and the size is left to the page.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)
    for colour, variable in _COLOURS.items():
        body = body.replace(colour, variable)
    view = re.search(r'viewBox="[^"]+"', body)
    box = view.group(0) if view else ""
    return re.sub(
        r"<svg[^>]*>",
        f'<svg {box} role="img" aria-label="{label}" xmlns="http://www.w3.org/2000/svg" '
        'xmlns:xlink="http://www.w3.org/1999/xlink" preserveAspectRatio="xMidYMid meet">',
        body,
        count=1,
    )
