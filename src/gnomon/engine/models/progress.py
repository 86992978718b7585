"""How far a load has come: a bar on a terminal, a line every tenth in a log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

_TENTHS = 10


@contextmanager
def progress(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Give a function that is told the bytes done since its last call.

    Args:
        what: e.g. "loading weights".
        total_bytes: when it is complete.
    """
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=total_bytes)
            yield lambda done: bar.advance(task, done)
        return
    done, told = 0, 0

    def advance(more: int) -> None:
        nonlocal done, told
        done += more
        tenth = _TENTHS * done // max(total_bytes, 1)
        if tenth > told:
            told = tenth
            logger.info("%s: %d of %d MB", what, done // 10**6, total_bytes // 10**6)

    yield advance
