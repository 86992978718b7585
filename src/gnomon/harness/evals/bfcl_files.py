"""Reads what the BFCL worker left behind: rows, verdicts, exchanges; counts what is odd."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Exchange:
    """One HTTP request of a case.

    Attributes:
        number: from 1 within the case.
        ended: whether its end was recorded; a killed worker leaves requests that only began.
        failure: ``timeout``, ``http``, ``connection`` or ``protocol``; None without one.
        error: the client's error, one line.
        status: HTTP status, None without a response.
        latency_s: 0.0 for a request that only began.
        body: the request as sent.
        response: the response as received, as text.
    """

    number: int
    ended: bool = False
    failure: str | None = None
    error: str | None = None
    status: int | None = None
    latency_s: float = 0.0
    body: Json = field(default_factory=dict)
    response: str | None = None


@dataclass(frozen=True)
class Verdicts:
    """bfcl-eval's judgement of one category.

    Attributes:
        total: rows it judged.
        correct: rows it called right.
        failures: its explanation of each row it called wrong, by id.
    """

    total: int
    correct: int
    failures: Mapping[str, Json]


@dataclass(frozen=True)
class BfclFiles:
    """Everything a worker wrote, by case.

    Attributes:
        cases: prompt, tools and accepted answers, by id.
        rows: bfcl-eval's result rows, by id; the first where an id comes twice.
        odd_rows: ids that came twice, and lines that are no row.
        exchanges: HTTP requests in order, by id.
        verdicts: by category.
        status: how asking and judging ended.
        packages: versions found in the environment.
    """

    cases: Mapping[str, Json]
    rows: Mapping[str, Json]
    odd_rows: tuple[str, ...]
    exchanges: Mapping[str, Sequence[Exchange]]
    verdicts: Mapping[str, Verdicts]
    status: Json
    packages: Mapping[str, str]


def read_files(root: Path) -> BfclFiles:
    """Read a worker's folder; whatever is missing is empty."""
    rows: dict[str, Json] = {}
    odd: list[str] = []
    for path in sorted((root / "result").rglob("*_result.json")):
        for row in _lines(path):
            case = row.get("id")
            if not isinstance(case, str):
                odd.append(f"a line of {path.name} is no row")
            elif case in rows:
                odd.append(f"{case} was answered twice")
            else:
                rows[case] = row
    return BfclFiles(
        cases=_mapping(root / "cases.json"),
        rows=rows,
        odd_rows=tuple(odd),
        exchanges=_exchanges(root / "exchanges.jsonl"),
        verdicts=dict(_verdicts(root / "score")),
        status=_mapping(root / "status.json"),
        packages=_mapping(root / "packages.json"),
    )


def _mapping(path: Path) -> Json:
    try:
        loaded = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _lines(path: Path) -> Iterator[Json]:
    """The JSON objects of a file of lines; a line that is none is an empty object."""
    if not path.exists():
        return
    for line in path.read_text(errors="replace").splitlines():
        if not line.strip():
            continue
        try:
            loaded = json.loads(line)
        except ValueError:
            loaded = None
        yield loaded if isinstance(loaded, dict) else {}


def _exchanges(path: Path) -> dict[str, list[Exchange]]:
    found: dict[str, dict[int, Exchange]] = {}
    for line in _lines(path):
        case, number = line.get("case"), line.get("number")
        if not isinstance(case, str) or not isinstance(number, int):
            continue
        of_case = found.setdefault(case, {})
        if line.get("event") == "begin":
            of_case.setdefault(number, Exchange(number))
            continue
        of_case[number] = Exchange(
            number=number,
            ended=True,
            failure=line.get("failure"),
            error=line.get("error"),
            status=line.get("status"),
            latency_s=float(line.get("latency_s") or 0.0),
            body=(line.get("request") or {}).get("body") or {},
            response=line.get("response"),
        )
    return {case: [by[n] for n in sorted(by)] for case, by in found.items()}


def _verdicts(score: Path) -> Iterator[tuple[str, Verdicts]]:
    """Score files: a header line with counts, then one line for each wrong row."""
    for path in sorted(score.rglob("BFCL_v*_score.json")):
        category = path.name.split("_", 2)[2].removesuffix("_score.json")
        header, *failures = list(_lines(path)) or [{}]
        yield (
            category,
            Verdicts(
                total=int(header.get("total_count", 0)),
                correct=int(header.get("correct_count", 0)),
                failures={str(line.get("id")): line for line in failures},
            ),
        )
