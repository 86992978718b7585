"""The real bfcl-eval against the scripted server, through both APIs."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gnomon.harness.evals.bfcl import run_bfcl
from gnomon.harness.evals.model import CaseCheck, Outcome, SuiteResult
from gnomon.harness.evals.spec import Api, BfclSpec

pytestmark = [pytest.mark.clients, pytest.mark.timeout(200)]

KEY = "a-key-that-must-not-leak"
BOTH: tuple[Api, ...] = ("chat", "responses")


@dataclass(frozen=True)
class Asked:
    result: SuiteResult
    out: Path
    requests: list[dict[str, Any]]

    def check(self, case: str) -> CaseCheck:
        (found,) = [c for c in self.result.cases if c.id == case]
        return found.checks[0]


@pytest.fixture(scope="module")
def ask(start_fake: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Asked]:
    def go(api: Api, *flags: str, cancel: threading.Event | None = None, **spec: Any) -> Asked:
        out = tmp_path_factory.mktemp("bfcl") / "out"
        with start_fake(*flags) as server:
            result = run_bfcl(
                BfclSpec(api=api, **spec), server, server.model, out, lambda line: None, cancel
            )
            requests = httpx.get(f"{server.origin}/fake/requests", timeout=10).json()
        return Asked(result, out, requests)

    return go


@pytest.fixture(scope="module", params=BOTH)
def right(request: pytest.FixtureRequest, ask: Callable[..., Asked]) -> Asked:
    """Right answers, after a first request that met a 429."""
    return ask(request.param, "--fault", "429", "--fault-count", "1")


def test_right_answers_pass_through_both_apis(right: Asked) -> None:
    result = right.result
    assert [case.outcome for case in result.cases] == [Outcome.PASS] * 4, result
    assert (result.passed, result.expected, result.score) == (4, 4, 1.0)
    assert result.problems == ()
    assert result.scope == "smoke"


def test_a_retry_is_an_attempt_and_not_a_case(right: Asked) -> None:
    assert (right.result.checks, right.result.attempts) == (4, 5)
    statuses = [a.http_status for c in right.result.cases for a in c.checks[0].attempts]
    assert sorted(s or 0 for s in statuses) == [200, 200, 200, 200, 429]


def test_each_api_is_asked_in_its_own_words(right: Asked) -> None:
    path = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}[right.result.api]
    assert {request["path"] for request in right.requests} == {path}


def test_requests_are_what_the_stock_handler_makes(right: Asked) -> None:
    content = "messages" if right.result.api == "chat" else "input"
    for request in right.requests:
        assert set(request["body"]) == {content, "model", "temperature", "store", "tools"}
    assert right.result.requested_sampling == {"temperature": 0.001, "store": False}


def test_a_case_carries_prompt_tools_answer_and_what_was_accepted(right: Asked) -> None:
    case = next(c for c in right.result.cases if c.id == "simple_python_141")
    assert "Gold price" in case.prompt
    assert case.tools == ("get_metal_price",)
    assert "ounce" in case.expected
    assert "get_metal_price" in (case.checks[0].output or "")
    assert case.checks[0].output_tokens is not None


def test_the_api_key_is_in_no_file(right: Asked) -> None:
    for path in right.out.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path


def test_versions_and_raw_files_are_kept(right: Asked) -> None:
    assert right.result.versions["bfcl-eval"] == "2026.3.23"
    names = {path.name for path in right.result.artifacts}
    assert {"exchanges.jsonl", "cases.json", "BFCL_v4_parallel_result.json"} <= names
    assert {"BFCL_v4_parallel_score.json", "bfcl_worker.log"} <= names


def test_calls_nobody_can_read_do_not_pass_even_where_no_call_is_right(
    ask: Callable[..., Asked],
) -> None:
    asked = ask("chat", "--answers", "broken-json")
    assert {case.outcome for case in asked.result.cases} == {Outcome.QUALITY_MISS}
    assert asked.result.score == 0.0
    assert "cannot be read" in asked.check("irrelevance_0").detail


def test_wrong_answers_are_quality_misses_with_reasons(ask: Callable[..., Asked]) -> None:
    asked = ask("responses", "--answers", "wrong")
    assert {case.outcome for case in asked.result.cases} == {Outcome.QUALITY_MISS}
    assert all(case.checks[0].detail for case in asked.result.cases)
    assert asked.result.score == 0.0


def test_an_error_on_irrelevance_is_an_error(ask: Callable[..., Asked]) -> None:
    asked = ask("chat", "--fault", "500", "--fault-match", "triangle")
    assert asked.check("irrelevance_0").outcome is Outcome.HTTP_ERROR
    assert [a.http_status for a in asked.check("irrelevance_0").attempts] == [500, 500]
    assert asked.result.passed == 3
    assert asked.result.score is None
    assert asked.result.bounds == (0.75, 1.0)


def test_a_hang_costs_one_case_its_time_outs_and_no_more(ask: Callable[..., Asked]) -> None:
    asked = ask("responses", "--fault", "hang", "--fault-match", "Gold", request_timeout_s=1.0)
    check = asked.check("simple_python_141")
    assert check.outcome is Outcome.REQUEST_TIMEOUT
    assert [a.outcome for a in check.attempts] == [Outcome.REQUEST_TIMEOUT] * 2
    assert asked.result.passed == 3


def test_a_server_that_is_always_busy_does_not_hold_the_suite_for_ever(
    ask: Callable[..., Asked],
) -> None:
    asked = ask("chat", "--fault", "429", max_retries=2)
    assert {case.outcome for case in asked.result.cases} == {Outcome.HTTP_ERROR}
    assert asked.result.attempts == 12


def test_an_answer_without_usage_is_a_protocol_error_and_nothing_is_invented(
    ask: Callable[..., Asked],
) -> None:
    asked = ask("chat", "--fault", "no-usage")
    assert {case.outcome for case in asked.result.cases} == {Outcome.PROTOCOL_ERROR}
    assert all(case.checks[0].output_tokens is None for case in asked.result.cases)
    assert asked.result.passed == 0


def test_what_was_answered_is_judged_when_the_budget_ends(ask: Callable[..., Asked]) -> None:
    asked = ask(
        "chat", "--fault", "hang", "--fault-match", "Gold", request_timeout_s=100, deadline_s=4
    )
    assert asked.check("simple_python_141").outcome is Outcome.BUDGET_EXHAUSTED
    assert asked.check("irrelevance_0").outcome is Outcome.PASS
    assert asked.result.score is None
    assert "budget of 4 s" in asked.result.problems[0]


def test_a_cancelled_evaluation_says_so_and_counts_every_case(ask: Callable[..., Asked]) -> None:
    cancel = threading.Event()
    threading.Timer(1.0, cancel.set).start()
    asked = ask("chat", "--fault", "hang", cancel=cancel)
    assert asked.result.problems[0] == "the evaluation was cancelled"
    assert {case.outcome for case in asked.result.cases} == {Outcome.NOT_RUN}
    assert asked.result.expected == 4
