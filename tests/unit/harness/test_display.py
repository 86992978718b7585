from __future__ import annotations

import io

from rich.console import Console

from gnomon.harness.display import LiveDisplay, PlainDisplay
from gnomon.harness.evidence.manifest import StageState


def test_a_pipe_gets_one_line_an_event_and_little_progress() -> None:
    lines: list[str] = []
    display = PlainDisplay(lines.append)
    display.begin("quickstart", ("launch", "replay"))
    display.enter("launch")
    for i in range(100):
        display.progress(f"tick {i}")
    display.leave("launch", StageState.FAILED, "no memory\nand a long log")
    display.close()
    said = [line.split("] ", 1)[1] for line in lines]
    assert said == ["quickstart: launch, replay", "launch ...", "launch: failed (no memory)"]


def test_a_terminal_shows_stages_progress_and_the_servers_last_words() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    display = LiveDisplay(console, lambda: "loading weights")
    display.begin("quickstart → run", ("preflight", "launch", "replay"))
    display.enter("preflight")
    display.leave("preflight", StageState.COMPLETE, "3 checks passed")
    display.enter("launch")
    display.progress("waiting for /health")
    screen = Console(file=io.StringIO(), width=100)
    screen.print(display)
    display.leave("launch", StageState.INTERRUPTED, "interrupted by SIGINT")
    display.leave("teardown", StageState.SKIPPED, "nothing was started")
    display.close()
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    for words in ("✓ ", "3 checks passed", "waiting for /health", "server │ loading weights"):
        assert words in shown
    assert isinstance(console.file, io.StringIO)
    last = console.file.getvalue()
    assert "interrupted by SIGINT" in last
    assert "nothing was started" in last
