"""Real parts of a run, made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnomon.harness.evals.model import Attempt, Case, CaseCheck, Outcome, SuiteResult
from gnomon.harness.evals.spec import Api
from gnomon.harness.nouns import Finding
from gnomon.harness.recipes.expand import expand
from gnomon.harness.recipes.load import load_recipe
from gnomon.harness.recipes.point import Point
from gnomon.harness.replay.results import (
    CacheHits,
    ReplayCounts,
    ReplayResult,
    RequestRecord,
    TimeSlice,
)

QUICKSTART = Path(__file__).parents[3] / "recipes" / "quickstart.yaml"


@pytest.fixture
def quickstart() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
    return data


@pytest.fixture
def point() -> Point:
    """The one point of the quickstart recipe."""
    (planned,) = expand(load_recipe(QUICKSTART).recipe).points
    return planned.point


@pytest.fixture
def make_replay() -> Callable[..., ReplayResult]:
    """A replay of three sessions with a sub-agent each; the first ``errors`` requests failed."""

    def make(errors: int = 0, hits: int = 4000, **changes: Any) -> ReplayResult:
        records = tuple(
            RequestRecord(
                request_id=f"r{i}",
                conversation_id=f"trace-{i % 3}" + ("::sa:1" if i % 6 > 3 else ""),
                turn_index=i // 3,
                agent_depth=int(i % 6 > 3),
                start_s=i * 0.5,
                end_s=i * 0.5 + 1.0,
                ttft_ms=None if i < errors else 100.0 + i,
                itl_ms=None if i < errors else 10.0 + i,
                latency_ms=None if i < errors else 1000.0,
                input_tokens=None if i < errors else 1000,
                output_tokens=None if i < errors else 20,
                cached_tokens=None if i < errors else hits // 18,
                error="500 internal_error: broken" if i < errors else None,
            )
            for i in range(18)
        )
        fields: dict[str, Any] = {
            "argv": ("aiperf", "profile", "--model", "nano"),
            "env": {},
            "exit_code": 0,
            "was_cancelled": False,
            "reason": None,
            "wall_s": 20.0,
            "duration_s": 9.5,
            "records": records,
            "counts": ReplayCounts(18, 18, 18 - errors, errors, 0, 0),
            "slices": tuple(TimeSlice(float(i), None, None, 40.0, 2, 0, 2.0) for i in range(10)),
            "slice_s": 1.0,
            "client_cache": CacheHits(hits, 18000, "usage"),
            "server_cache": CacheHits(hits, 18000, "counters"),
            "findings": (Finding("totals-agree", True, "18 and 18"),),
            "versions": {"aiperf": "0.13.0"},
        }
        return ReplayResult(**{**fields, **changes})

    return make


@pytest.fixture
def make_suite() -> Callable[..., SuiteResult]:
    """Four cases through one API, with the outcomes given."""

    def make(
        api: Api = "chat",
        outcomes: tuple[Outcome, ...] = (Outcome.QUALITY_MISS,) * 3 + (Outcome.PASS,),
        **changes: Any,
    ) -> SuiteResult:
        cases = tuple(
            Case(
                id=f"case_{i}",
                category="simple_python",
                prompt='[{"role": "user", "content": "<b>add</b> 1 and 2"}]',
                tools=("add",),
                expected='[{"add": {"a": [1], "b": [2]}}]',
                checks=(
                    CaseCheck(
                        "ast",
                        outcome,
                        output="<script>alert(1)</script>",
                        latency_s=0.5,
                        attempts=(Attempt(1, Outcome.PASS, 0.5, 200),),
                    ),
                ),
            )
            for i, outcome in enumerate(outcomes)
        )
        fields: dict[str, Any] = {
            "suite": "bfcl_smoke",
            "api": api,
            "scope": "smoke",
            "manifest_sha256": "ab" * 32,
            "cases": cases,
            "duration_s": 5.0,
            "requested_sampling": {"temperature": 0.001},
            "versions": {"bfcl-eval": "2026.3.23"},
        }
        return SuiteResult(**{**fields, **changes})

    return make
