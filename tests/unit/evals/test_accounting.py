"""Folders as a BFCL worker leaves them, written by hand: each fault counted once, by its name."""

import json
from pathlib import Path
from typing import Any

import pytest

from gnomon.harness.evals.bfcl_account import account, problems, requested_sampling
from gnomon.harness.evals.bfcl_files import read_files
from gnomon.harness.evals.manifest import load_manifest
from gnomon.harness.evals.model import CaseCheck, Outcome, SuiteResult

MANIFEST = load_manifest("bfcl_smoke")
CALL = [{"get_metal_price": '{"metal": "Gold", "measure": "ounce"}'}]
TRACEBACK = "Traceback (most recent call last): ..."


class Folder:
    """A worker's folder in which every case was answered and judged right, to be edited."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cases = {case: self.known(category) for category, case in MANIFEST.ids}
        self.rows = {case: self.answer(category) for category, case in MANIFEST.ids}
        self.exchanges = {case: [self.exchange()] for _, case in MANIFEST.ids}
        self.wrong: dict[str, dict[str, Any]] = {}
        self.unjudged: set[str] = set()
        self.extra_rows: list[dict[str, Any]] = []
        self.status: dict[str, Any] = {}

    @staticmethod
    def known(category: str) -> dict[str, Any]:
        expected = None if category == "irrelevance" else [{"f": {"x": [1]}}]
        return {"category": category, "prompt": [[]], "tools": ["f"], "expected": expected}

    @staticmethod
    def answer(category: str) -> dict[str, Any]:
        result: Any = "I cannot." if category == "irrelevance" else CALL
        return {
            "result": result,
            "input_token_count": 9,
            "output_token_count": 3,
            "latency": 0.5,
        }

    @staticmethod
    def exchange(**fields: Any) -> dict[str, Any]:
        body = {"model": "m", "temperature": 0.001, "store": False}
        return {
            "event": "end",
            "latency_s": 0.1,
            "status": 200,
            "failure": None,
            "error": None,
            "request": {"path": "/v1/chat/completions", "body": body},
            "response": "{}",
            **fields,
        }

    def fail(self, case: str, *exchanges: dict[str, Any], why: str = TRACEBACK) -> None:
        self.rows[case] = {"result": "Error during inference: broken", "traceback": why}
        self.exchanges[case] = list(exchanges)

    def read(self) -> Any:
        results = self.root / "result" / "gnomon-chat" / "non_live"
        scores = self.root / "score" / "gnomon-chat" / "non_live"
        results.mkdir(parents=True)
        scores.mkdir(parents=True)
        for category, ids in MANIFEST.cases.items():
            rows = [{"id": case, **self.rows[case]} for case in ids if case in self.rows]
            rows += [row for row in self.extra_rows if row["id"].startswith(category)]
            path = results / f"BFCL_v4_{category}_result.json"
            path.write_text("\n".join(map(json.dumps, rows)))
            judged = [row["id"] for row in rows if "traceback" not in row]
            if judged and category not in self.unjudged:
                bad = [{"id": case, **self.wrong[case]} for case in judged if case in self.wrong]
                head = {"total_count": len(judged), "correct_count": len(judged) - len(bad)}
                path = scores / f"BFCL_v4_{category}_score.json"
                path.write_text("\n".join(map(json.dumps, (head, *bad))))
        lines = [
            {"case": case, "number": number, **exchange}
            for case, exchanges in self.exchanges.items()
            for number, exchange in enumerate(exchanges, 1)
        ]
        (self.root / "exchanges.jsonl").write_text("\n".join(map(json.dumps, lines)))
        (self.root / "cases.json").write_text(json.dumps(self.cases))
        (self.root / "status.json").write_text(json.dumps(self.status))
        return read_files(self.root)

    def suite(self) -> SuiteResult:
        files = self.read()
        return SuiteResult(
            suite=MANIFEST.suite,
            api="chat",
            scope=MANIFEST.scope,
            manifest_sha256=MANIFEST.sha256,
            cases=account(MANIFEST, files),
            duration_s=1.0,
            requested_sampling=requested_sampling(files),
            versions={},
            problems=tuple(problems(MANIFEST, files)),
        )


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def check(result: SuiteResult, case: str) -> CaseCheck:
    (found,) = [c for c in result.cases if c.id == case]
    return found.checks[0]


def test_right_answers_pass(folder: Folder) -> None:
    result = folder.suite()
    assert (result.passed, result.expected, result.checks, result.attempts) == (4, 4, 4, 4)
    assert result.score == 1.0
    assert result.complete
    assert result.requested_sampling == {"temperature": 0.001, "store": False}


def test_a_case_carries_its_evidence(folder: Folder) -> None:
    case = folder.suite().cases[0]
    assert (case.category, case.tools, json.loads(case.expected)) == (
        "simple_python",
        ("f",),
        [{"f": {"x": [1]}}],
    )
    assert json.loads(case.checks[0].output or "") == CALL
    assert (case.checks[0].input_tokens, case.checks[0].output_tokens) == (9, 3)


def test_a_wrong_answer_is_a_quality_miss_with_the_reason(folder: Folder) -> None:
    folder.wrong["multiple_38"] = {"error_type": "checker:wrong", "error": ["Not that one."]}
    result = folder.suite()
    assert check(result, "multiple_38").outcome is Outcome.QUALITY_MISS
    assert check(result, "multiple_38").detail == "checker:wrong: Not that one."
    assert result.score == 0.75


@pytest.mark.parametrize(
    "finish", [{"choices": [{"finish_reason": "length"}]}, {"status": "incomplete"}]
)
def test_a_wrong_answer_that_was_cut_says_so(folder: Folder, finish: dict[str, Any]) -> None:
    folder.wrong["multiple_38"] = {"error_type": "t", "error": ["e"]}
    folder.exchanges["multiple_38"] = [folder.exchange(response=json.dumps(finish))]
    assert "cut at its token limit" in check(folder.suite(), "multiple_38").detail


FAILURES = [
    ({"failure": "timeout", "status": None}, Outcome.REQUEST_TIMEOUT),
    ({"failure": "http", "status": 500}, Outcome.HTTP_ERROR),
    ({"failure": "connection", "status": None}, Outcome.HTTP_ERROR),
    ({"failure": "protocol", "status": 200}, Outcome.PROTOCOL_ERROR),
    ({"failure": None, "status": 200}, Outcome.PROTOCOL_ERROR),  # arrived, and of no use
]


@pytest.mark.parametrize("case", [case for _, case in MANIFEST.ids])
@pytest.mark.parametrize(("exchange", "outcome"), FAILURES)
def test_an_error_is_classed_and_never_scores(
    folder: Folder, case: str, exchange: dict[str, Any], outcome: Outcome
) -> None:
    folder.fail(case, folder.exchange(**exchange))
    result = folder.suite()
    assert check(result, case).outcome is outcome
    assert check(result, case).attempts[-1].outcome is outcome
    assert check(result, case).error == TRACEBACK
    assert check(result, case).output is None
    assert result.errors_by_class == {outcome: 1}
    assert result.score is None
    assert result.bounds == (0.75, 1.0)


def test_retries_are_attempts_and_never_cases(folder: Folder) -> None:
    busy = folder.exchange(failure="http", status=429)
    folder.exchanges["parallel_1"] = [busy, busy, folder.exchange()]
    result = folder.suite()
    assert check(result, "parallel_1").outcome is Outcome.PASS
    statuses = [a.http_status for a in check(result, "parallel_1").attempts]
    assert statuses == [429, 429, 200]
    assert (result.expected, result.checks, result.attempts) == (4, 4, 6)


def test_a_case_whose_time_is_used_up_is_out_of_budget(folder: Folder) -> None:
    slow = folder.exchange(failure="timeout", status=None)
    folder.fail("parallel_1", slow, why="... CaseBudgetExhausted: the case's time is used up")
    assert check(folder.suite(), "parallel_1").outcome is Outcome.BUDGET_EXHAUSTED


def test_a_case_that_was_stopped_in_flight_is_out_of_budget_and_keeps_its_request(
    folder: Folder,
) -> None:
    del folder.rows["parallel_1"]
    folder.exchanges["parallel_1"] = [{"event": "begin"}]
    result = folder.suite()
    assert check(result, "parallel_1").outcome is Outcome.BUDGET_EXHAUSTED
    assert len(check(result, "parallel_1").attempts) == 1


def test_a_case_that_was_never_asked_is_not_run_and_stays_in_the_denominator(
    folder: Folder,
) -> None:
    del folder.rows["parallel_1"]
    del folder.exchanges["parallel_1"]
    result = folder.suite()
    assert check(result, "parallel_1").outcome is Outcome.NOT_RUN
    assert result.expected == 4
    assert result.score is None


def test_an_answer_nobody_judged_does_not_pass(folder: Folder) -> None:
    folder.unjudged.add("irrelevance")
    result = folder.suite()
    assert check(result, "irrelevance_0").outcome is Outcome.NOT_RUN
    assert result.problems == ("1 answers of irrelevance were not judged",)


def test_a_call_nobody_can_read_is_no_pass_on_irrelevance(folder: Folder) -> None:
    folder.rows["irrelevance_0"]["result"] = [{"f": '{"x": '}]
    result = folder.suite()
    assert check(result, "irrelevance_0").outcome is Outcome.QUALITY_MISS
    assert "cannot be read" in check(result, "irrelevance_0").detail


@pytest.mark.parametrize("result", ["no function fits", "", None, []])
def test_any_answer_without_a_call_passes_irrelevance(folder: Folder, result: Any) -> None:
    folder.rows["irrelevance_0"]["result"] = result
    assert check(folder.suite(), "irrelevance_0").outcome is Outcome.PASS


def test_rows_outside_the_manifest_and_rows_that_come_twice_are_problems(folder: Folder) -> None:
    folder.extra_rows = [
        {"id": "multiple_39", **folder.answer("multiple")},
        {"id": "multiple_38", **folder.answer("multiple")},
    ]
    result = folder.suite()
    assert [case.id for case in result.cases] == [case for _, case in MANIFEST.ids]
    assert "multiple_39 was answered and is not in the manifest of bfcl_smoke" in result.problems
    assert "multiple_38 was answered twice" in result.problems
    assert result.score is None


def test_verdicts_that_do_not_add_up_are_a_problem(folder: Folder) -> None:
    files = folder.read()
    score = next(folder.root.rglob("BFCL_v4_multiple_score.json"))
    score.write_text('{"total_count": 7, "correct_count": 7}')
    found = list(problems(MANIFEST, read_files(folder.root)))
    assert files.verdicts["multiple"].total == 1
    assert len(found) == 1
    assert "judged 7" in found[0]


def test_requests_that_differ_in_sampling_are_a_problem(folder: Folder) -> None:
    other = folder.exchange()
    other["request"]["body"]["temperature"] = 1.0
    folder.exchanges["parallel_1"] = [other]
    assert "requests of the suite differ in their sampling parameters" in folder.suite().problems


def test_an_empty_folder_is_four_cases_not_run(tmp_path: Path) -> None:
    cases = account(MANIFEST, read_files(tmp_path))
    assert [case.outcome for case in cases] == [Outcome.NOT_RUN] * 4


def test_the_smoke_manifest_is_the_four_published_cases() -> None:
    assert [case for _, case in MANIFEST.ids] == [
        "simple_python_141",
        "multiple_38",
        "parallel_1",
        "irrelevance_0",
    ]
    assert (MANIFEST.scope, MANIFEST.client_version) == ("smoke", "2026.3.23")


def test_outcomes_add_up_to_the_denominator(folder: Folder) -> None:
    folder.fail("parallel_1", folder.exchange(failure="http", status=500))
    folder.wrong["multiple_38"] = {"error_type": "t", "error": "e"}
    result = folder.suite()
    assert sum(result.outcomes.values()) == result.expected
    assert result.bounds == (0.5, 0.75)
