"""What an evaluation found: suite, case, check and attempt, with nothing left uncounted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from gnomon.harness.evals.spec import Api


class Outcome(StrEnum):
    """How a check of a case ended; the first two are answers, the others are failures to answer."""

    PASS = "pass"
    QUALITY_MISS = "quality_miss"
    REQUEST_TIMEOUT = "request_timeout"
    HTTP_ERROR = "http_error"
    PROTOCOL_ERROR = "protocol_error"
    PARSER_EXCEPTION = "parser_exception"
    BUDGET_EXHAUSTED = "budget_exhausted"
    NOT_RUN = "not_run"

    @property
    def is_answer(self) -> bool:
        """Whether the model gave an answer that could be judged, right or wrong."""
        return self in (Outcome.PASS, Outcome.QUALITY_MISS)


@dataclass(frozen=True)
class Attempt:
    """One HTTP request and what came of it; a retry is another attempt, never another case.

    Attributes:
        number: from 1, in the order sent.
        outcome: PASS where the HTTP exchange gave a readable answer (its judgement belongs to the
            check), otherwise the class of the failure.
        latency_s: from sending to the last byte or to the failure.
        http_status: the response's status, None where there was no response.
        error: one line, None where there was none.
    """

    number: int
    outcome: Outcome
    latency_s: float
    http_status: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class CaseCheck:
    """One judgement of a case (BFCL has one a case; a streaming twin would be a second).

    Attributes:
        name: what was judged, such as ``ast`` or ``irrelevance``.
        outcome: pass, quality miss, or the class of the failure to answer.
        detail: why it is not a pass, in one line; empty for a pass.
        output: what the model answered as the client decoded it (JSON or text), None without one.
        error: the client's error text or traceback, None where there was none.
        input_tokens: the server's count, None where the client recorded none.
        output_tokens: the server's count, None where the client recorded none.
        latency_s: the client's own figure, None without one.
        attempts: every HTTP request made for it, in order.
    """

    name: str
    outcome: Outcome
    detail: str = ""
    output: str | None = None
    error: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    latency_s: float | None = None
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True)
class Case:
    """One case of a suite's manifest, with its evidence.

    Attributes:
        id: as in the manifest; unique in a suite.
        category: the benchmark's own category.
        prompt: the messages of the case as JSON text.
        tools: names of the functions offered.
        expected: the accepted answers as JSON text; empty where the right answer is no call.
        checks: at least one.
    """

    id: str
    category: str
    prompt: str
    tools: tuple[str, ...]
    expected: str
    checks: tuple[CaseCheck, ...]

    @property
    def outcome(self) -> Outcome:
        """PASS if every check passed; else the first failure to answer; else QUALITY_MISS."""
        for check in self.checks:
            if not check.outcome.is_answer:
                return check.outcome
        if all(check.outcome is Outcome.PASS for check in self.checks):
            return Outcome.PASS
        return Outcome.QUALITY_MISS


@dataclass(frozen=True)
class SuiteResult:
    """Everything one suite through one API gave; a score cannot be had without its denominator.

    Attributes:
        suite: the suite's name.
        api: the API it went through.
        scope: ``smoke``, ``diagnostic`` or ``full``; belongs beside every number.
        manifest_sha256: identity of the list of case ids.
        cases: exactly the manifest's ids, once each, in its order.
        duration_s: wall time of asking and judging.
        requested_sampling: what the client put into its requests.
        versions: of the client and of the packages its requests depend on.
        artifacts: raw files, relative to the evaluation's folder.
        problems: sentences about the suite as a whole (worker died, deadline, unexpected rows).
    """

    suite: str
    api: Api
    scope: str
    manifest_sha256: str
    cases: tuple[Case, ...]
    duration_s: float
    requested_sampling: Mapping[str, float | int | bool | str | None]
    versions: Mapping[str, str]
    artifacts: tuple[Path, ...] = ()
    problems: tuple[str, ...] = field(default=())

    @property
    def expected(self) -> int:
        """Unique cases of the manifest: the denominator, whatever was answered."""
        return len(self.cases)

    @property
    def passed(self) -> int:
        """Cases whose every check passed."""
        return sum(case.outcome is Outcome.PASS for case in self.cases)

    @property
    def checks(self) -> int:
        """Checks over all cases."""
        return sum(len(case.checks) for case in self.cases)

    @property
    def attempts(self) -> int:
        """HTTP requests over all cases, retries included."""
        return sum(len(check.attempts) for case in self.cases for check in case.checks)

    @property
    def outcomes(self) -> Mapping[Outcome, int]:
        """Cases by outcome; the values add up to `expected`."""
        return Counter(case.outcome for case in self.cases)

    @property
    def errors_by_class(self) -> Mapping[Outcome, int]:
        """Cases without an answer, by the class of the failure; empty is what a suite needs."""
        return {o: n for o, n in self.outcomes.items() if not o.is_answer}

    @property
    def complete(self) -> bool:
        """Whether every case was answered and nothing went wrong around them."""
        return not self.errors_by_class and not self.problems

    @property
    def score(self) -> float | None:
        """Passed over expected, or None: a suite with any integration error has no score."""
        return self.passed / self.expected if self.complete and self.expected else None

    @property
    def bounds(self) -> tuple[float, float]:
        """What the score could be at least and at most, given the cases without an answer."""
        unknown = sum(self.errors_by_class.values())
        total = max(self.expected, 1)
        return self.passed / total, (self.passed + unknown) / total
