"""Turns what a BFCL worker left behind into a suite result: every case once, every error classed.

Pure: the same files give the same result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gnomon.harness.evals.bfcl_files import BfclFiles, Exchange, Verdicts
from gnomon.harness.evals.manifest import Manifest
from gnomon.harness.evals.model import Attempt, Case, CaseCheck, Outcome

Json = dict[str, Any]

FAILURES = {
    "timeout": Outcome.REQUEST_TIMEOUT,
    "http": Outcome.HTTP_ERROR,
    "connection": Outcome.HTTP_ERROR,
    "protocol": Outcome.PROTOCOL_ERROR,
}
"""Outcome of a failed request by the worker's class. A connection that was refused or dropped is an
HTTP error without a status; a 2xx response that is not what the API promises is a protocol error.
"""

SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "tool_choice",
    "stream",
    "store",
)


def account(manifest: Manifest, files: BfclFiles) -> tuple[Case, ...]:
    """Exactly the manifest's cases, in its order, each with one check."""
    return tuple(_case(category, case, files) for category, case in manifest.ids)


def _case(category: str, case: str, files: BfclFiles) -> Case:
    known = files.cases.get(case, {})
    expected = known.get("expected")
    return Case(
        id=case,
        category=category,
        prompt=_text(known.get("prompt", "")),
        tools=tuple(known.get("tools", ())),
        expected="" if expected is None else _text(expected),
        checks=(_check(category, case, files),),
    )


def _check(category: str, case: str, files: BfclFiles) -> CaseCheck:
    row, exchanges = files.rows.get(case), files.exchanges.get(case, ())
    outcome, detail = _outcome(category, case, files)
    return CaseCheck(
        name="irrelevance" if "irrelevance" in category else "ast",
        outcome=outcome,
        detail=detail,
        output=_text(row["result"]) if row is not None and "traceback" not in row else None,
        error=_error(row, exchanges),
        input_tokens=_tokens(row, "input_token_count"),
        output_tokens=_tokens(row, "output_token_count"),
        latency_s=_latency(row),
        attempts=_attempts(outcome, exchanges),
    )


def _outcome(category: str, case: str, files: BfclFiles) -> tuple[Outcome, str]:
    """Class of a case and one line why; a pass needs an answer and bfcl-eval's verdict on it."""
    row, exchanges = files.rows.get(case), files.exchanges.get(case, ())
    if row is None:
        return _without_row(exchanges)
    if "traceback" in row:  # never judged: bfcl-eval would score it, on irrelevance as correct
        return _failed(row, exchanges)
    verdicts = files.verdicts.get(category)
    if verdicts is None:
        return Outcome.NOT_RUN, "answered, but not judged"
    if case in verdicts.failures:
        return Outcome.QUALITY_MISS, _why(verdicts.failures[case]) + _cut_short(exchanges)
    if "irrelevance" in category and not _is_text(row["result"]):
        return (
            Outcome.QUALITY_MISS,
            "a function was called with arguments that cannot be read; bfcl-eval counts this as "
            "correct because no call could be decoded, gnomon does not",
        )
    return Outcome.PASS, ""


def _without_row(exchanges: Sequence[Exchange]) -> tuple[Outcome, str]:
    if not exchanges:
        return Outcome.NOT_RUN, "never asked"
    return Outcome.BUDGET_EXHAUSTED, f"stopped during request {exchanges[-1].number}"


def _failed(row: Json, exchanges: Sequence[Exchange]) -> tuple[Outcome, str]:
    detail = _one_line(str(row.get("result", "")))
    if "CaseBudgetExhausted" in str(row["traceback"]):
        return Outcome.BUDGET_EXHAUSTED, detail
    last = exchanges[-1] if exchanges else None
    if last is None:
        return Outcome.PROTOCOL_ERROR, f"failed before anything was sent: {detail}"
    if last.failure is None:  # a response arrived and the client could not use it
        return Outcome.PROTOCOL_ERROR, detail
    return FAILURES.get(last.failure, Outcome.PROTOCOL_ERROR), detail


def _why(failure: Json) -> str:
    error = failure.get("error")
    if isinstance(error, dict):
        error = error.get("error_message", error)
    reasons = error if isinstance(error, list) else [error]
    kind = failure.get("error_type", "")
    return _one_line(f"{kind}: {'; '.join(_text(reason) for reason in reasons)}")


def _cut_short(exchanges: Sequence[Exchange]) -> str:
    """Says so when the answer ended at its token limit."""
    try:
        response = json.loads(exchanges[-1].response or "") if exchanges else {}
        choices = response.get("choices") or [{}]
        cut = choices[0].get("finish_reason") == "length" or response.get("status") == "incomplete"
    except (ValueError, AttributeError, LookupError, TypeError):
        return ""
    return "; the answer was cut at its token limit" if cut else ""


def _is_text(result: object) -> bool:
    """Whether an answer holds no call: text, or nothing at all."""
    return result is None or isinstance(result, str) or result == []


def _error(row: Json | None, exchanges: Sequence[Exchange]) -> str | None:
    if row is not None and "traceback" in row:
        return str(row["traceback"])
    return exchanges[-1].error if row is None and exchanges else None


def _tokens(row: Json | None, name: str) -> int | None:
    value = None if row is None else row.get(name)
    return int(value) if isinstance(value, int | float) else None


def _latency(row: Json | None) -> float | None:
    value = None if row is None else row.get("latency")
    return float(value) if isinstance(value, int | float) else None


def _attempts(outcome: Outcome, exchanges: Sequence[Exchange]) -> tuple[Attempt, ...]:
    """Every request; a last one that the client could not use is as broken as its case."""
    attempts = [_attempt(exchange) for exchange in exchanges]
    if outcome is Outcome.PROTOCOL_ERROR and attempts and attempts[-1].outcome is Outcome.PASS:
        attempts[-1] = replace(attempts[-1], outcome=outcome)
    return tuple(attempts)


def _attempt(exchange: Exchange) -> Attempt:
    outcome = Outcome.PASS
    if not exchange.ended:
        outcome = Outcome.BUDGET_EXHAUSTED
    elif exchange.failure is not None:
        outcome = FAILURES.get(exchange.failure, Outcome.PROTOCOL_ERROR)
    return Attempt(
        number=exchange.number,
        outcome=outcome,
        latency_s=exchange.latency_s,
        http_status=exchange.status,
        error=None if exchange.error is None else _one_line(exchange.error),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]


def problems(manifest: Manifest, files: BfclFiles) -> Iterator[str]:
    """What is wrong with the suite as a whole; failures of single cases are not repeated here."""
    wanted = {case for _, case in manifest.ids}
    yield from files.odd_rows
    for case in sorted(set(files.rows) - wanted):
        yield f"{case} was answered and is not in the manifest of {manifest.suite}"
    for case in sorted(wanted - set(files.cases)) if files.cases else ():
        yield f"bfcl-eval {manifest.client_version} has no case {case}"
    for category in manifest.cases:
        answered = [
            case
            for case in manifest.cases[category]
            if case in files.rows and "traceback" not in files.rows[case]
        ]
        yield from _verdict_problems(category, answered, files.verdicts.get(category))
    if len({json.dumps(s, sort_keys=True) for s in _samplings(files)}) > 1:
        yield "requests of the suite differ in their sampling parameters"


def _verdict_problems(
    category: str, answered: Sequence[str], verdicts: Verdicts | None
) -> Iterator[str]:
    if verdicts is None:
        if answered:
            yield f"{len(answered)} answers of {category} were not judged"
        return
    if verdicts.total != len(answered) or verdicts.correct + len(verdicts.failures) != len(
        answered
    ):
        yield (
            f"{category}: {len(answered)} answers, but bfcl-eval judged {verdicts.total} and "
            f"called {verdicts.correct} right and {len(verdicts.failures)} wrong"
        )


def _samplings(files: BfclFiles) -> list[Json]:
    return [
        {name: exchange.body[name] for name in SAMPLING_FIELDS if name in exchange.body}
        for exchanges in files.exchanges.values()
        for exchange in exchanges
        if exchange.body
    ]


def requested_sampling(files: BfclFiles) -> Json:
    """Sampling parameters as they stood in the requests; empty where none was sent."""
    found = _samplings(files)
    return found[0] if found else {}
