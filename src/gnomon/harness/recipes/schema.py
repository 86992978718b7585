"""A recipe: what to serve, how to load it, what to ask it, and how long each part may take.

Typed data and nothing else: no templates, no environment variables, no defaults taken from another
file. Every flag carries the reason why it is set.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from gnomon.harness.evals.spec import BfclSpec
from gnomon.harness.evidence.verdicts import Scope
from gnomon.harness.replay.spec import TEMPLATE_ALLOWANCE_TOKENS, ReplaySpec

Value = TypeVar("Value")

CacheLayoutName = Literal["auto", "bf16", "fp32", "fp8", "mxfp4", "nvfp4"]
ComputeDtypeName = Literal["auto", "float32", "bfloat16"]
Count = Annotated[int, Field(ge=1)]
Sentence = Annotated[str, StringConstraints(strip_whitespace=True, min_length=8)]


class Flag(BaseModel, Generic[Value]):
    """One engine flag and the reason why it is set.

    Attributes:
        value: what is passed to the engine.
        why: what would go wrong, or be different, without it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    value: Value
    why: Sentence


class GnomonFlags(BaseModel):
    """Flags of ``gnomon serve``, by the same names with underscores; None is not passed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kv_cache_dtype: Flag[CacheLayoutName] | None = None
    index_cache_dtype: Flag[CacheLayoutName] | None = None
    dtype: Flag[ComputeDtypeName] | None = None
    block_size: Flag[Count] | None = None
    max_model_len: Flag[Count] | None = None
    max_num_seqs: Flag[Count] | None = None
    max_num_batched_tokens: Flag[Count] | None = None
    kv_cache_memory_bytes: Flag[Count] | None = None
    num_blocks: Flag[Count] | None = None
    enable_prefix_caching: Flag[bool] | None = None
    seed: Flag[Annotated[int, Field(ge=0)]] | None = None


class EngineSpec(BaseModel):
    """Which engine serves, and how.

    Attributes:
        name: selects the adapter.
        flags: of that engine.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["gnomon"]
    flags: GnomonFlags = GnomonFlags()


class ModelSpec(BaseModel):
    """What is served.

    Attributes:
        path: a checkpoint directory, or a name the engine knows (``nano``).
        weights: ``random`` says that the weights were never trained: quality then does not apply,
            and no report may pretend that it does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Annotated[str, Field(min_length=1)]
    weights: Literal["trained", "random"]


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
    """Everything that is needed to repeat a run.

    Attributes:
        name: lower-case identifier, part of the run folder's name.
        description: one or two sentences for the report.
        scope: how much its numbers may stand for; printed beside each of them.
        model: what is served.
        engine: by what, and how.
        replay: the load, or None for a run without one.
        evals: suites, each through one API.
        deadlines: of the stages.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    description: Sentence
    scope: Scope
    model: ModelSpec
    engine: EngineSpec
    replay: ReplaySpec | None = None
    evals: tuple[BfclSpec, ...] = ()
    deadlines: Deadlines = Deadlines()

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        faults = cross_faults(self.engine.flags, self.replay, self.evals, self.scope)
        if faults:
            raise ValueError("; ".join(f"{message} {remedy}" for _, message, remedy in faults))
        return self


def cross_faults(
    flags: GnomonFlags | None,
    replay: ReplaySpec | None,
    evals: tuple[BfclSpec, ...],
    scope: object = None,
) -> list[tuple[str, str, str]]:
    """Faults between parts that are each right on their own: (path, message, remedy).

    Parts that could not be read are passed as None or left out, so that a recipe with one broken
    part still has the others compared.
    """
    faults: list[tuple[str, str, str]] = []
    longest = flags.max_model_len if flags is not None else None
    if longest is not None and replay is not None:
        needed = replay.longest_request_tokens + TEMPLATE_ALLOWANCE_TOKENS
        if longest.value < needed:
            faults.append(
                (
                    "engine.flags.max_model_len.value",
                    f"{longest.value} tokens cannot hold the replay's longest request "
                    f"({needed} tokens with room for the chat template).",
                    f"Raise it to {needed} or lower replay.traces.max_input_tokens.",
                )
            )
    if scope == Scope.FULL and replay is not None and replay.traces.kind == "generated":
        faults.append(
            (
                "scope",
                f"full cannot be said of a generated set of {replay.traces.sessions} sessions: "
                "its numbers stand for no real load.",
                "Use smoke or diagnostic.",
            )
        )
    seen: dict[tuple[str, str], int] = {}
    for position, spec in enumerate(evals):
        identity = (spec.suite, spec.api)
        if identity in seen:
            faults.append(
                (
                    f"evals[{position}]",
                    f"{spec.suite} through {spec.api} is already evals[{seen[identity]}].",
                    "Remove one of them: a suite runs once through each API.",
                )
            )
        seen.setdefault(identity, position)
    return faults
