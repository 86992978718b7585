"""Verdicts: named checks with evidence, kept apart for integration, quality and performance.

A number cannot be built without its unit, its n and its scope, so none can be shown without them.
One verdict never voids another: a model that answers wrongly may still be measured, and a run
without a valid measurement may still have proven that the parts work together.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Scope(StrEnum):
    """How much a number may be trusted to stand for: shown on every number."""

    SMOKE = "smoke"  # proves the path works; says nothing about the population
    DIAGNOSTIC = "diagnostic"  # explains a question; not to be published
    FULL = "full"  # the whole suite or the whole window


class CheckState(StrEnum):
    """Outcome of one check; a check that could not run is never a pass."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not_applicable"
    NOT_RUN = "not_run"


class VerdictKind(StrEnum):
    """What a verdict is about."""

    INTEGRATION = "integration"
    QUALITY = "quality"
    PERFORMANCE = "performance"


class Interval(BaseModel):
    """A confidence interval and how it was made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: float
    high: float
    level: float = Field(gt=0, lt=1)
    method: str = Field(min_length=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.high:
            raise ValueError(f"an interval needs low <= high, not {self.low} and {self.high}")
        return self


class Figure(BaseModel):
    """A number that may be shown: value, unit, n and scope belong together.

    Attributes:
        metric: id of a metric in :mod:`gnomon.harness.stats.metrics`.
        value: the number; finite.
        unit: as it is to be printed (``ms``, ``tokens/s``, ``fraction``).
        n: how many observations it rests on; at least 1.
        scope: what it may stand for.
        interval: its uncertainty, where the metric has a method that holds for these data.
        no_interval_because: the reason where there is none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    metric: str = Field(min_length=1)
    value: float = Field(allow_inf_nan=False)
    unit: str = Field(min_length=1)
    n: int = Field(ge=1)
    scope: Scope
    interval: Interval | None = None
    no_interval_because: str = ""

    @model_validator(mode="after")
    def _uncertainty_is_stated(self) -> Self:
        if (self.interval is None) == (not self.no_interval_because):
            raise ValueError(
                f"figure {self.metric!r} needs either an interval or the reason why it has none"
            )
        return self


class Check(BaseModel):
    """One named statement about a run, with what it rests on.

    Attributes:
        name: short and stable, for tables and gates.
        state: the outcome.
        evidence: what was seen, in a sentence; never empty.
        scope: what the check may stand for.
        n: how many observations it rests on (requests, cases, settings).
        figures: the numbers behind it.
        artifacts: files of the run folder that hold the raw evidence.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    state: CheckState
    evidence: str = Field(min_length=1)
    scope: Scope
    n: int = Field(ge=0)
    figures: tuple[Figure, ...] = ()
    artifacts: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _a_pass_rests_on_something(self) -> Self:
        if self.state is CheckState.PASSED and self.n < 1:
            raise ValueError(f"check {self.name!r} cannot pass on n = 0 observations")
        return self


class Verdict(BaseModel):
    """What the checks of one kind come to.

    Attributes:
        kind: what it is about.
        state: derived from the checks by :func:`verdict`.
        summary: one sentence for people.
        checks: all of them, the passed ones too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: VerdictKind
    state: CheckState
    summary: str = Field(min_length=1)
    checks: tuple[Check, ...]

    @model_validator(mode="after")
    def _state_follows_from_the_checks(self) -> Self:
        derived = combine(check.state for check in self.checks)
        if self.state is not derived:
            raise ValueError(
                f"the {self.kind} verdict is {derived} by its checks, not {self.state}"
            )
        return self

    def with_state(self, state: CheckState) -> tuple[Check, ...]:
        """The checks in one state."""
        return tuple(check for check in self.checks if check.state is state)


class Verdicts(BaseModel):
    """The three verdicts of a run; the contents of ``verdicts.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = 1
    integration: Verdict
    quality: Verdict
    performance: Verdict

    def all(self) -> tuple[Verdict, ...]:
        """In the order of the report."""
        return (self.integration, self.quality, self.performance)


def combine(states: Iterable[CheckState]) -> CheckState:
    """State of a whole from its parts.

    One failure fails the whole. Without a failure, a part that did not run leaves the whole
    unproven, so it counts as not run. Parts that do not apply are neutral.
    """
    seen = set(states)
    for state in (CheckState.FAILED, CheckState.NOT_RUN, CheckState.PASSED):
        if state in seen:
            return state
    return CheckState.NOT_APPLICABLE if seen else CheckState.NOT_RUN


def verdict(kind: VerdictKind, checks: Iterable[Check], summary: str) -> Verdict:
    """Build a verdict whose state follows from its checks."""
    listed = tuple(checks)
    state = combine(check.state for check in listed)
    return Verdict(kind=kind, state=state, summary=summary, checks=listed)
