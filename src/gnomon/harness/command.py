"""What ``gnomon run`` and ``gnomon report`` do: signals, the terminal, and the exit status."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from gnomon.harness.cancel import CancelToken, Cause
from gnomon.harness.display import Display, LiveDisplay, PlainDisplay, UnheardDisplay
from gnomon.harness.errors import HarnessError, RecipeRefused, RunCancelled
from gnomon.harness.evidence import folder as names
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.manifest import RunState
from gnomon.harness.evidence.verdicts import CheckState
from gnomon.harness.launch.supervisor import log_tail

if TYPE_CHECKING:
    from gnomon.harness.run import RunOutcome

OK = 0
NOT_PROVEN = 1
REFUSED = 2
SIGNALLED = 128

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STYLES = {
    CheckState.PASSED: "bold green",
    CheckState.FAILED: "bold red",
    CheckState.NOT_RUN: "bold yellow",
    CheckState.NOT_APPLICABLE: "bold",
}


def run_command(recipe: Path, out: Path, point: str | None = None, *, reuse: bool = False) -> int:
    """Run a point of a recipe and print what came of it; returns the exit status.

    Args:
        recipe: its file.
        out: the store that gets the run.
        point: which point, or the beginning of its id.
        reuse: do not measure again what a valid run of the same content key in `out` measured.
    """
    from gnomon.harness.evidence.store import Store
    from gnomon.harness.recipes.load import check_recipe
    from gnomon.harness.run import Run, execute

    console = Console(highlight=False)
    errors = Console(stderr=True, highlight=False)
    cancel = CancelToken()
    with _signals_cancel(cancel) as received:
        try:
            with _status(console, f"planning {recipe}"):
                checked = check_recipe(recipe, cancel, point)
        except RecipeRefused as refusal:
            print_refusal(errors, refusal)
            return REFUSED
        except RunCancelled:
            errors.print("interrupted while planning: nothing was started, no folder was made")
            return SIGNALLED + received()
        log: list[Path] = []
        display = _display(console, log)
        try:
            run = Run.open(checked, out, cancel, display)
        except OSError as error:
            errors.print(f"[red]error:[/red] cannot make a run folder in {out}: {error.strerror}")
            return NOT_PROVEN
        run.reuse = Store(out) if reuse else None
        log.append(run.folder.path / names.SERVER_LOG)
        outcome = execute(run)
        _tell(_Heard(console, errors), outcome)
        if outcome.state is RunState.INTERRUPTED:
            return SIGNALLED + received()
        return OK if outcome.succeeded else NOT_PROVEN


@dataclass(frozen=True)
class _Heard:
    """Where results and complaints go."""

    out: Console
    errors: Console


def _tell(heard: _Heard, outcome: RunOutcome) -> None:
    """Print verdicts, reason and places; a reader that went away misses them."""
    with _unless_unheard():
        heard.out.print()
        for verdict in outcome.verdicts.all() if outcome.verdicts is not None else ():
            line = Text(f"{verdict.kind:<12} ")
            line.append(f"{verdict.state.replace('_', ' '):<15}", _STYLES[verdict.state])
            line.append(verdict.summary)
            heard.out.print(line, soft_wrap=True)
    with _unless_unheard():
        if outcome.failed_stage is not None:
            word = "interrupted" if outcome.state is RunState.INTERRUPTED else "failed"
            why = f"{word} at stage {outcome.failed_stage}: {outcome.reason}"
            heard.errors.print(Text(why, "red"), soft_wrap=True)
        elif outcome.reason:
            heard.errors.print(Text(f"not proven: {outcome.reason}", "red"), soft_wrap=True)
    with _unless_unheard():
        if outcome.reused is not None:
            heard.out.print(f"reused  {outcome.folder.parent / outcome.reused}", soft_wrap=True)
        heard.out.print(f"folder  {outcome.folder}", soft_wrap=True)
        if outcome.report is not None:
            heard.out.print(f"report  {outcome.report}", soft_wrap=True)


@contextlib.contextmanager
def _unless_unheard() -> Iterator[None]:
    """Let nothing that cannot be written change a run's exit status.

    rich answers a closed pipe with SystemExit. Standard output then goes nowhere, so that the
    interpreter's own flush at exit cannot fail either.
    """
    try:
        yield
    except (OSError, SystemExit):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())


def report_command(folder: Path, out: Path | None = None) -> int:
    """Render a run folder's report again; returns the exit status.

    A sealed run keeps the page it was sealed with; the new one lies beside its folder.

    Args:
        folder: of the run.
        out: where the page goes instead.
    """
    from gnomon.harness.evidence.atomic import write_text
    from gnomon.harness.report.build import render_page
    from gnomon.harness.report.view import read_page

    errors = Console(stderr=True, highlight=False)
    run = RunFolder(folder.resolve())
    beside = run.path.with_name(f"{run.path.name}.html")
    path = out or (beside if run.sealed else run.path / names.REPORT)
    try:
        write_text(path, render_page(read_page(run)))
    except HarnessError as error:
        errors.print(Text(f"error: {error}", "red"))
        return NOT_PROVEN
    except OSError as error:
        errors.print(Text(f"error: {path} cannot be written: {error.strerror}", "red"))
        return NOT_PROVEN
    Console(highlight=False).print(f"report  {path}", soft_wrap=True)
    return OK


@contextlib.contextmanager
def _signals_cancel(cancel: CancelToken) -> Iterator[_Received]:
    """Signals set the token: the run tears down by itself, however often they come."""
    received = _Received()

    def handle(signum: int, _: FrameType | None) -> None:
        received.signum = received.signum or signum
        name = signal.Signals(signum).name
        cancel.cancel(Cause.INTERRUPTED, f"interrupted by {name}")

    previous = {each: signal.signal(each, handle) for each in _SIGNALS}
    try:
        yield received
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


class _Received:
    """The first signal that came, callable for its number."""

    def __init__(self) -> None:
        self.signum = 0

    def __call__(self) -> int:
        return self.signum or int(signal.SIGINT)


def _display(console: Console, log: list[Path]) -> Display:
    if not console.is_terminal:
        return UnheardDisplay(PlainDisplay(lambda line: print(line, flush=True)))

    def newest_line() -> str:
        lines = log_tail(log[0], 1) if log else []
        return lines[-1] if lines else ""

    return UnheardDisplay(LiveDisplay(console, newest_line))


@contextlib.contextmanager
def _status(console: Console, message: str) -> Iterator[None]:
    if console.is_terminal:
        with console.status(message):
            yield
    else:
        yield


def print_refusal(console: Console, refusal: RecipeRefused) -> None:
    """Print every problem of a recipe, each with what to change."""
    count = len(refusal.problems)
    console.print(
        Text.assemble(
            ("refused ", "bold red"),
            f"{refusal.source}: {count} problem{'s' if count != 1 else ''}, nothing was started",
        ),
        soft_wrap=True,
    )
    for problem in refusal.problems:
        line = Text.assemble("  • ", (problem.path, "bold"), f": {problem.message}")
        if problem.remedy:
            line.append(f" {problem.remedy}", "green")
        console.print(line, soft_wrap=True)
