"""What a person sees while a run works: live on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from gnomon.harness.evidence.manifest import StageState

_PLAIN_EVERY_S = 5.0
_SYMBOLS = {
    StageState.COMPLETE: Text("✓", style="green"),
    StageState.FAILED: Text("✗", style="bold red"),
    StageState.INTERRUPTED: Text("■", style="yellow"),
    StageState.SKIPPED: Text("–", style="dim"),
}


class Display(Protocol):
    """How a run tells a person what it does."""

    def begin(self, title: str, stages: tuple[str, ...]) -> None:
        """The run starts; these stages are to come."""
        ...

    def enter(self, stage: str) -> None:
        """A stage starts."""
        ...

    def progress(self, message: str) -> None:
        """What the running stage is doing right now, in one line."""
        ...

    def leave(self, stage: str, state: StageState, detail: str) -> None:
        """A stage ended."""
        ...

    def close(self) -> None:
        """The run ended; nothing more is shown."""
        ...


class PlainDisplay:
    """One line an event, for logs and pipes; progress at most every few seconds."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._start = time.monotonic()
        self._stage = ""
        self._last_progress = 0.0

    def _line(self, text: str) -> None:
        self._write(f"[{time.monotonic() - self._start:7.1f} s] {text}")

    def begin(self, title: str, stages: tuple[str, ...]) -> None:
        """Print the title and the stages to come."""
        self._line(f"{title}: {', '.join(stages)}")

    def enter(self, stage: str) -> None:
        """Print that the stage started."""
        self._stage = stage
        self._last_progress = time.monotonic()
        self._line(f"{stage} ...")

    def progress(self, message: str) -> None:
        """Print the message unless one was printed a moment ago."""
        now = time.monotonic()
        if now - self._last_progress >= _PLAIN_EVERY_S:
            self._last_progress = now
            self._line(f"{self._stage}: {_one_line(message)}")

    def leave(self, stage: str, state: StageState, detail: str) -> None:
        """Print how the stage ended."""
        self._line(f"{stage}: {state}{f' ({_one_line(detail)})' if detail else ''}")

    def close(self) -> None:
        """Nothing to tidy up."""


class UnheardDisplay:
    """Keeps a run going when nobody listens any more: a closed pipe, a terminal that hung up.

    Whatever the wrapped display cannot write is dropped; the run has evidence to finish and a
    server to end. (rich answers a closed pipe with SystemExit.)
    """

    def __init__(self, heard: Display) -> None:
        self._heard = heard

    def begin(self, title: str, stages: tuple[str, ...]) -> None:
        """Pass it on."""
        with contextlib.suppress(OSError, SystemExit):
            self._heard.begin(title, stages)

    def enter(self, stage: str) -> None:
        """Pass it on."""
        with contextlib.suppress(OSError, SystemExit):
            self._heard.enter(stage)

    def progress(self, message: str) -> None:
        """Pass it on."""
        with contextlib.suppress(OSError, SystemExit):
            self._heard.progress(message)

    def leave(self, stage: str, state: StageState, detail: str) -> None:
        """Pass it on."""
        with contextlib.suppress(OSError, SystemExit):
            self._heard.leave(stage, state, detail)

    def close(self) -> None:
        """Pass it on."""
        with contextlib.suppress(OSError, SystemExit):
            self._heard.close()


@dataclass
class _Row:
    stage: str
    state: StageState | None = None
    started: float = 0.0
    seconds: float = 0.0
    detail: str = ""


class LiveDisplay:
    """A table of stages that redraws itself, with the server's last log line below.

    Args:
        console: where to draw.
        log_line: returns the newest line of the server's log, or an empty string.
    """

    def __init__(self, console: Console, log_line: Callable[[], str]) -> None:
        self._console = console
        self._log_line = log_line
        self._title = ""
        self._start = time.monotonic()
        self._rows: list[_Row] = []
        self._live: Live | None = None
        self._spinner = Spinner("dots", style="cyan")

    def begin(self, title: str, stages: tuple[str, ...]) -> None:
        """Start drawing."""
        self._title = title
        self._rows = [_Row(stage) for stage in stages]
        self._live = Live(
            self,
            console=self._console,
            refresh_per_second=8,
            redirect_stdout=False,
            transient=False,
        )
        self._live.start()

    def enter(self, stage: str) -> None:
        """Give the stage a spinner and a clock."""
        row = self._row(stage)
        row.state, row.started, row.detail = StageState.RUNNING, time.monotonic(), ""

    def progress(self, message: str) -> None:
        """Show the message beside the running stage."""
        for row in self._rows:
            if row.state is StageState.RUNNING:
                row.detail = _one_line(message)

    def leave(self, stage: str, state: StageState, detail: str) -> None:
        """Stop the stage's clock and show how it ended."""
        row = self._row(stage)
        row.seconds = time.monotonic() - row.started if row.started else 0.0
        row.state, row.detail = state, _one_line(detail)

    def close(self) -> None:
        """Leave the last drawing on the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _row(self, stage: str) -> _Row:
        for row in self._rows:
            if row.stage == stage:
                return row
        row = _Row(stage)
        self._rows.append(row)
        return row

    def __rich__(self) -> RenderableType:
        """Draw the run as it is now."""
        now = time.monotonic()
        table = Table.grid(padding=(0, 2))
        table.add_column(width=1)
        table.add_column(min_width=9)
        table.add_column(justify="right", min_width=7)
        table.add_column(overflow="ellipsis", no_wrap=True, ratio=1)
        for row in self._rows:
            table.add_row(*self._cells(row, now))
        head = Text.assemble((self._title, "bold"), (f"  {now - self._start:.0f} s", "dim"))
        parts: list[RenderableType] = [head, table]
        if any(row.state is StageState.RUNNING for row in self._rows) and (log := self._log_line()):
            parts.append(Text(f"server │ {log}", style="dim", no_wrap=True, overflow="ellipsis"))
        return Group(*parts)

    def _cells(self, row: _Row, now: float) -> tuple[RenderableType, ...]:
        if row.state is None:
            return Text("·", style="dim"), Text(row.stage, style="dim"), "", ""
        if row.state is StageState.RUNNING:
            clock = f"{now - row.started:.1f} s"
            return self._spinner, Text(row.stage, style="bold cyan"), clock, Text(row.detail)
        style = "red" if row.state is StageState.FAILED else "dim"
        clock = f"{row.seconds:.1f} s"
        return _SYMBOLS[row.state], Text(row.stage), clock, Text(row.detail, style=style)


def _one_line(text: str) -> str:
    """The first line of a text: displays have one row for each stage."""
    return text.strip().splitlines()[0] if text.strip() else ""
