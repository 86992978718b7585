from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gnomon.harness.adapters.catalogue import ADAPTERS
from gnomon.harness.adapters.protocol import Command
from gnomon.harness.cancel import CancelToken, Cause
from gnomon.harness.command import report_command
from gnomon.harness.display import PlainDisplay
from gnomon.harness.evals.model import Outcome, SuiteResult
from gnomon.harness.evidence import folder as names
from gnomon.harness.evidence.manifest import RunState, StageRecord, StageState
from gnomon.harness.evidence.raw import save_replay
from gnomon.harness.evidence.seen import Evidence
from gnomon.harness.evidence.verdicts import Check, CheckState, Scope
from gnomon.harness.launch.supervisor import Teardown
from gnomon.harness.recipes.load import CheckedRecipe
from gnomon.harness.recipes.plan import PlanReport
from gnomon.harness.recipes.point import Point
from gnomon.harness.replay.results import ReplayResult
from gnomon.harness.report.build import byte_size, number, render_report, shell_lines
from gnomon.harness.run import Run
from gnomon.harness.stages import SUITES_JSON

PLAN = {"num_blocks": 512, "pool_bytes": 44564480, "weight_bytes": 15230016, "limited_by": "demand"}
ATTESTED = Check(
    name="attested: seed", state=CheckState.PASSED, evidence="0", scope=Scope.SMOKE, n=1
)
WELL = Teardown(0, True, (), (), False, 0.5)


@pytest.fixture
def open_run(point: Point, tmp_path: Path) -> Callable[..., Run]:
    def make(**changes: Any) -> Run:
        plan = PlanReport(Command(("python", "-m", "gnomon", "plan"), {}), True, (), PLAN)
        changed = point.model_copy(update=changes)
        checked = CheckedRecipe(Path("r.yaml"), "name: x\n", changed, ADAPTERS["gnomon"], plan)
        return Run.open(checked, tmp_path / "runs", CancelToken(), PlainDisplay(lambda _: None))

    return make


def publish(run: Run) -> str:
    """Judge, settle and render what the run has seen; returns the page."""
    if run.seen.replay is not None:
        save_replay(run.folder, run.seen.replay)
    if run.seen.suites:
        run.folder.write_json(names.EVALS, SUITES_JSON.dump_python(run.seen.suites, mode="json"))
    run.judge()
    run.settle()
    run.folder.record(run.manifest)
    return render_report(run.folder).read_text()


@pytest.fixture
def whole(
    open_run: Callable[..., Run],
    make_replay: Callable[..., ReplayResult],
    make_suite: Callable[..., SuiteResult],
) -> Run:
    run = open_run()
    run.seen = Evidence(
        ready_s=2.0,
        attestation=(ATTESTED,),
        replay=make_replay(),
        suites=[make_suite("chat"), make_suite("responses")],
        teardown=WELL,
    )
    run.manifest.stages.append(
        StageRecord(
            name="replay", state=StageState.COMPLETE, started="t", start_s=0.0, duration_s=9.0
        )
    )
    return run


class Balance(HTMLParser):
    """Collects what a browser would fetch, and checks that tags are closed in order."""

    VOID = frozenset({"meta", "link", "br", "path", "use", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("href", "src", "xlink:href", "srcset", "action") and value:
                self.addresses.append(value)
            if name == "id" and value:
                self.ids.append(value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def parsed(page: str) -> Balance:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    return parser


def test_the_page_is_one_file_that_fetches_nothing(whole: Run) -> None:
    page = publish(whole)
    structure = parsed(page)
    assert all(address.startswith(("#", "data:")) for address in structure.addresses)
    assert "script" not in structure.tags
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert len(structure.ids) == len(set(structure.ids))


def test_random_weights_are_said_in_the_first_sentence(whole: Run) -> None:
    page = publish(whole)
    words = "Integration complete; quality not applicable to this model (random weights)"
    assert f'<h1 class="headline">{words}</h1>' in page


def test_every_case_is_shown_with_its_outcome_for_each_api(whole: Run) -> None:
    page = publish(whole)
    for i in range(4):
        assert f"case_{i}" in page
    assert page.count(">wrong answer<") == 6
    assert page.count(">pass<") == 2
    assert "Chat Completions" in page
    assert "Responses" in page


def test_numbers_come_with_scope_and_n(whole: Run) -> None:
    page = publish(whole)
    for tile in re.findall(r'<div class="card tile".*?</div>\n</div>', page, re.DOTALL):
        assert "smoke · n " in tile
    for chart in re.findall(r"<figure.*?</figure>", page, re.DOTALL):
        assert "smoke · n " in chart
    assert "Time to first token p99" in page  # withheld, and said so


def test_what_a_model_or_a_recipe_says_cannot_become_markup(whole: Run) -> None:
    page = publish(whole)
    assert "<script>alert(1)</script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


@pytest.mark.parametrize("outcome", list(Outcome), ids=str)
def test_every_outcome_class_has_words(
    outcome: Outcome, whole: Run, make_suite: Callable[..., SuiteResult]
) -> None:
    whole.seen.suites = [make_suite("chat", (outcome,), problems=("the worker died",))]
    assert "the worker died" in publish(whole)


def test_a_failed_run_shows_where_and_why(open_run: Callable[..., Run]) -> None:
    run = open_run()
    run.manifest.failed_stage = "launch"
    run.manifest.reason = "the server process 7 ended with signal 9 (SIGKILL)"
    page = publish(run)
    parsed(page)
    assert run.manifest.state is RunState.FAILED
    assert "Failed at the launch stage" in page
    assert "signal 9 (SIGKILL)" in page
    assert "Not run." in page


def test_an_interrupted_run_is_not_called_a_failure(open_run: Callable[..., Run]) -> None:
    run = open_run()
    run.cancel.cancel(Cause.INTERRUPTED, "interrupted by SIGINT")
    run.manifest.failed_stage = "replay"
    run.manifest.reason = "interrupted by SIGINT"
    page = publish(run)
    assert run.manifest.state is RunState.INTERRUPTED
    assert "Interrupted at the replay stage" in page


def test_a_run_that_is_not_proven_says_so(
    whole: Run, make_replay: Callable[..., ReplayResult]
) -> None:
    whole.seen.replay = make_replay(errors=2)
    page = publish(whole)
    assert "Integration not proven" in page


def test_a_replay_without_one_completed_request_is_rendered(
    whole: Run, make_replay: Callable[..., ReplayResult]
) -> None:
    whole.seen.replay = make_replay(errors=18, client_cache=None, server_cache=None)
    parsed(publish(whole))


def test_a_folder_whose_run_never_ended_can_be_rendered(open_run: Callable[..., Run]) -> None:
    page = render_report(open_run().folder).read_text()
    assert "Still running, or ended without a word" in page


def test_rendering_again_gives_the_same_page(whole: Run) -> None:
    assert publish(whole) == render_report(whole.folder).read_text()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.00123, "0.00123"), (12.345, "12.3"), (123.4, "123"), (12345.6, "12,346")],
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, "unknown"), (1000, "1,000 B"), (1536, "1.5 KiB"), (1 << 30, "1.0 GiB")],
)
def test_bytes_are_in_binary_units(size: int | None, text: str) -> None:
    assert byte_size(size) == text


def test_a_command_is_shown_as_one_would_type_it() -> None:
    assert shell_lines(("a", "serve", "--x", "1 2", "--y")) == "a serve \\\n  --x '1 2' \\\n  --y"


def test_a_sealed_run_keeps_its_page_and_a_new_one_lies_beside_it(whole: Run) -> None:
    page = publish(whole)
    whole.folder.seal(whole.manifest)
    assert report_command(whole.folder.path) == 0
    assert not whole.folder.faults()
    path = whole.folder.path
    assert path.with_name(f"{path.name}.html").read_text().count("<section") == page.count(
        "<section"
    )
