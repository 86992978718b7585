"""A recipe: what to serve in which arms, how to load each, what to ask it, how long it may take.

Typed data and nothing else: no templates, no environment variables. What several recipes share
comes from the files a recipe extends (see :mod:`gnomon.harness.recipes.merge`); here all of that is
merged already, so every arm is whole. Every flag carries the reason why it is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from gnomon.harness.evals.spec import BfclSpec
from gnomon.harness.evidence.verdicts import Scope
from gnomon.harness.recipes.flags import Sentence
from gnomon.harness.recipes.serving import LimitsSpec, Serving
from gnomon.harness.replay.spec import (
    MAX_CONCURRENCY,
    TEMPLATE_ALLOWANCE_TOKENS,
    AgenticScenario,
    AgentxScenario,
    FixedLengthScenario,
    Scenario,
)

Purpose = Literal["production", "probe"]
Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
Sessions = Annotated[int, Field(ge=1, le=MAX_CONCURRENCY, strict=True)]
SINGLE_ARM = "default"
"""Name of the arm of a recipe that lists none."""


class ConcurrencyRange(BaseModel):
    """Concurrencies from ``start``, each ``factor`` times the one before, ending at ``end``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    start: Sessions
    end: Sessions
    factor: Annotated[int, Field(ge=2)] = 2

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.start > self.end:
            raise ValueError(f"start {self.start} is above end {self.end}; exchange them")
        return self

    @property
    def values(self) -> tuple[int, ...]:
        """All of them; the last is ``end``, whether or not the steps meet it."""
        values, current = [], self.start
        while current < self.end:
            values.append(current)
            current *= self.factor
        return (*values, self.end)


def _written_as(value: object) -> str:
    return "range" if isinstance(value, Mapping | BaseModel) else "list"


Concurrency = Annotated[
    Annotated[tuple[Sessions, ...], Tag("list")] | Annotated[ConcurrencyRange, Tag("range")],
    Discriminator(_written_as),
]


class Arm(Serving):
    """One way of serving, with the sessions it gets and the suites it is asked.

    Attributes:
        name: identifier, unique in its recipe.
        why: why this arm is measured.
        concurrency: sessions alive at once; one point for each.
        evals: suites that ask a server of the same plan, each through one API.
    """

    name: Identifier = SINGLE_ARM
    why: Sentence | None = None
    concurrency: Concurrency | None = None
    evals: tuple[BfclSpec, ...] = ()

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """The grid of this arm; empty for an arm that is only evaluated."""
        if self.concurrency is None:
            return ()
        if isinstance(self.concurrency, ConcurrencyRange):
            return self.concurrency.values
        return self.concurrency

    @model_validator(mode="after")
    def _a_grid_ascends(self) -> Self:
        grid = self.concurrencies
        if self.concurrency is not None and not grid:
            raise ValueError("concurrency lists nothing; list at least one number of sessions")
        if list(grid) != sorted(set(grid)):
            raise ValueError(f"concurrency {list(grid)} must ascend without repeats; sort it")
        return self


class Deadlines(BaseModel):
    """How long each stage may take before it is ended and named as the reason.

    The replay and each evaluation carry their own ``deadline_s``.

    Attributes:
        plan_s: rendering the plan and checking it.
        ready_s: from starting the server to its first healthy answer.
        attest_s: all probes together.
        stop_s: from asking the server to end to killing what is left of it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    plan_s: float = Field(default=120.0, gt=0)
    ready_s: float = Field(default=180.0, gt=0)
    attest_s: float = Field(default=120.0, gt=0)
    stop_s: float = Field(default=20.0, gt=0)


class Recipe(BaseModel):
    """Everything that is needed to repeat a sweep.

    Attributes:
        name: lower-case identifier, part of each run folder's name.
        description: one or two sentences for the report.
        scope: how much its numbers may stand for; printed beside each of them.
        purpose: a ``probe`` answers a question and can never be published, nor does it change
            what another recipe measures.
        sources: public places its facts come from.
        scenario: the load, or None for a recipe that only evaluates.
        arms: ways of serving, each whole.
        deadlines: of the stages.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    description: Sentence
    scope: Scope
    purpose: Purpose = "production"
    sources: tuple[Sentence, ...] = ()
    scenario: Scenario | None = None
    arms: tuple[Arm, ...]
    deadlines: Deadlines = Deadlines()

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        faults = header_faults(self.scenario, self.scope)
        for position, arm in enumerate(self.arms):
            faults += arm_faults(
                ArmParts(arm.limits, self.scenario, arm.evals, arm.concurrency is not None),
                f"arms[{position}]",
            )
        faults += name_faults([arm.name for arm in self.arms])
        if faults:
            raise ValueError("; ".join(f"{message} {remedy}" for _, message, remedy in faults))
        return self


Fault = tuple[str, str, str]
"""Path, message and remedy."""


class ArmParts(NamedTuple):
    """What the cross-checks of one arm compare; None where a part could not be read.

    Attributes:
        limits: of the server.
        scenario: of the recipe.
        evals: the readable ones.
        loaded: whether the arm has a concurrency.
    """

    limits: LimitsSpec | None
    scenario: AgenticScenario | AgentxScenario | FixedLengthScenario | None
    evals: tuple[BfclSpec, ...]
    loaded: bool


def header_faults(scenario: object, scope: object) -> list[Fault]:
    """Faults between the scenario and the scope."""
    if scope == Scope.FULL and isinstance(scenario, AgenticScenario):
        return [
            (
                "scope",
                f"full cannot be said of a generated set of {scenario.traces.sessions} sessions: "
                "its numbers stand for no real load.",
                "Use smoke or diagnostic.",
            )
        ]
    return []


def name_faults(names: list[str]) -> list[Fault]:
    """Faults between the names of the arms."""
    if not names:
        return [("arms", "the list is empty.", "List an arm, or leave the key out.")]
    twice = sorted({name for name in names if names.count(name) > 1})
    return [
        ("arms", f"{name!r} names {names.count(name)} arms.", "Give each arm its own name.")
        for name in twice
    ]


def arm_faults(parts: ArmParts, path: str = "") -> list[Fault]:
    """Faults between parts of an arm that are each right on their own.

    Parts that could not be read are None or left out, so that an arm with one broken part still
    has the others compared.
    """
    return [*_load_faults(parts, path), *_length_faults(parts, path), *_suite_faults(parts, path)]


def _load_faults(parts: ArmParts, path: str) -> list[Fault]:
    where = f"{path}.concurrency".lstrip(".")
    if parts.scenario is not None and not parts.loaded:
        return [(where, "the scenario says no number of sessions.", "List at least one.")]
    if parts.limits is None:
        return []
    limits = parts.limits
    if limits.max_num_seqs is not None and limits.seqs_per_session is not None:
        return [
            (
                f"{path}.limits".lstrip("."),
                "max_num_seqs and seqs_per_session say the same thing twice.",
                "Keep one of them.",
            )
        ]
    return []


def _length_faults(parts: ArmParts, path: str) -> list[Fault]:
    longest = parts.limits.max_model_len if parts.limits is not None else None
    scenario = parts.scenario
    if longest is None or scenario is None or isinstance(scenario, AgentxScenario):
        return []
    needed = scenario.longest_request_tokens + TEMPLATE_ALLOWANCE_TOKENS
    if longest.value >= needed:
        return []
    shorter = (
        "scenario.traces.max_input_tokens"
        if isinstance(scenario, AgenticScenario)
        else "scenario.input_tokens"
    )
    return [
        (
            f"{path}.limits.max_model_len.value".lstrip("."),
            f"{longest.value} tokens cannot hold the scenario's longest request "
            f"({needed} tokens with room for the chat template).",
            f"Raise it to {needed} or lower {shorter}.",
        )
    ]


def _suite_faults(parts: ArmParts, path: str) -> list[Fault]:
    faults: list[Fault] = []
    seen: dict[tuple[str, str], int] = {}
    for position, spec in enumerate(parts.evals):
        identity = (spec.suite, spec.api)
        if identity in seen:
            faults.append(
                (
                    f"{path}.evals[{position}]".lstrip("."),
                    f"{spec.suite} through {spec.api} is already evals[{seen[identity]}].",
                    "Remove one of them: a suite runs once through each API.",
                )
            )
        seen.setdefault(identity, position)
    return faults
