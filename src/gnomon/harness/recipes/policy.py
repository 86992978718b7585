"""The rules of fair measurement, as code.

A broken rule of the first kind refuses a point: what it would measure is not what it says. A rule
of the second kind lets it run but keeps its numbers from being published. The rules are those that
public benchmarks keep by check list (InferenceX) or learnt the hard way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gnomon.harness.errors import Problem
from gnomon.harness.evidence.verdicts import Scope
from gnomon.harness.recipes.flags import set_flags
from gnomon.harness.recipes.golden import GoldenRow
from gnomon.harness.recipes.memory import MemoryVerdict
from gnomon.harness.recipes.point import Point
from gnomon.harness.recipes.quantities import UNKNOWN
from gnomon.harness.replay.spec import AgentxScenario

SKIPPING = frozenset(
    {"use_index_cache", "index_topk_freq", "index_topk_pattern", "index_skip_topk_offset"}
)
"""Configuration keys that make sparse layers reuse an earlier layer's selection."""

PLANNED_ENV = (
    *("SGLANG_SIMULATE_ACC", "TLLM_SPEC_DECODE_FORCE", "VLLM_USE_SIMPLE_KV_OFFLOAD"),
    *("MOONCAKE_", "MC_STORE_", "LMCACHE_"),
)
"""Beginnings of variables that adapters set from the plan: acceptance and the second tier."""


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        code: stable identifier.
        states: what must hold.
        broken: yields where and how a point breaks it.
    """

    code: str
    states: str
    broken: Callable[[Point], Iterator[Problem]]


def _overrides(point: Point) -> dict[str, Any]:
    """Every configuration key a recipe overrides, nested ones included."""
    found: dict[str, Any] = {}

    def walk(data: Any) -> None:
        if isinstance(data, Mapping):
            for key, value in data.items():
                found[str(key)] = value
                walk(value)

    flags = set_flags(point.engine.settings)
    for name in ("hf_overrides", "json_model_override_args"):
        walk(flags.get(name))
    return found


def _skips_the_indexer(point: Point) -> Iterator[Problem]:
    if point.purpose == "probe":
        return
    for key in sorted(SKIPPING & set(_overrides(point))):
        yield Problem(
            "engine.flags.hf_overrides.value",
            f"{key} makes layers reuse another layer's selection: fewer operations than the model "
            "has.",
            "Remove it, or ask the question in a probe.",
        )


def _block_size(point: Point) -> Iterator[Problem]:
    sparse = point.model.block_size
    asked = point.kv.block_size.value if point.kv.block_size is not None else None
    if sparse is not None and asked != sparse and point.engine.name != "gnomon":
        said = "the engine's default" if asked is None else str(asked)
        yield Problem(
            "kv.block_size.value",
            f"a block of {said} tokens does not line up with the model's sparse block of {sparse}.",
            f"Set it to {sparse}.",
        )


def _one_place(point: Point) -> Iterator[Problem]:
    for name in point.engine.env:
        if name.startswith(PLANNED_ENV):
            yield Problem(
                f"engine.env.{name}",
                "acceptance and the second tier are rendered from the plan.",
                "Remove it and say it in speculation or offload.",
            )


def _image(point: Point) -> Iterator[Problem]:
    image = point.engine.image
    if image is None and point.engine.name != "gnomon":
        yield Problem("engine.image", "no image is named.", "Name one with its digest.")
    elif image is not None and image.digest == UNKNOWN:
        yield Problem(
            "engine.image.digest",
            f"{image.reference} is a tag, which can be moved; its digest is unknown.",
            "Pin the digest.",
        )


def _revisions(point: Point) -> Iterator[Problem]:
    if point.model.revision == UNKNOWN:
        yield Problem("model.revision", f"of {point.model.path} is unknown.", "Pin it.")
    if point.drafted is not None and point.drafted.draft.revision == UNKNOWN:
        path = point.drafted.draft.path
        yield Problem("speculation.draft.revision", f"of {path} is unknown.", "Pin it.")
    scenario = point.scenario
    if isinstance(scenario, AgentxScenario) and scenario.dataset_revision == UNKNOWN:
        where = "scenario.dataset_revision"
        yield Problem(where, f"of {scenario.dataset} is unknown.", "Pin it.")


def _uniform_client(point: Point) -> Iterator[Problem]:
    if not isinstance(point.scenario, AgentxScenario):
        return
    for name in point.scenario.uncanonical:
        yield Problem(
            f"scenario.{name}",
            f"{getattr(point.scenario, name)} is not the canonical plan's value, so no other "
            "number can stand beside these.",
            "Remove it.",
        )


def _uniform_stream(point: Point) -> Iterator[Problem]:
    if "stream_interval" in set_flags(point.engine.settings):
        yield Problem(
            "engine.flags.stream_interval",
            "several tokens arrive as one event, so times between tokens mean something else.",
            "Remove it.",
        )


def _golden_acceptance(point: Point) -> Iterator[Problem]:
    if point.profile == "load" and point.drafted is not None and point.forced is None:
        yield Problem(
            "speculation.acceptance",
            "the replayed text is no text the draft was made for, so what it accepts says nothing.",
            "Use golden.",
        )


def _random_weights(point: Point) -> Iterator[Problem]:
    if point.model.weights == "random":
        yield Problem("model.weights", "random weights serve no one.", "Use trained weights.")


def _scope(point: Point) -> Iterator[Problem]:
    if point.scope is not Scope.FULL:
        yield Problem("scope", f"{point.scope} numbers stand for no real load.", "Use full.")


def _probe(point: Point) -> Iterator[Problem]:
    if point.purpose == "probe":
        yield Problem("purpose", "a probe answers a question and is never published.", "")


REFUSING: tuple[Rule, ...] = (
    Rule(
        "full-model",
        "No override skips the indexer or any other work of the model.",
        _skips_the_indexer,
    ),
    Rule("block-size", "The engine's block is the model's sparse block.", _block_size),
    Rule("one-place", "Acceptance and host memory are said by the plan alone.", _one_place),
)
"""Rules whose breach refuses a point."""

PUBLISHING: tuple[Rule, ...] = (
    Rule("no-probe", "Probes are never published.", _probe),
    Rule("full-scope", "Published numbers have full scope.", _scope),
    Rule("image-digest", "Engines run from an image that is pinned by digest.", _image),
    Rule("revisions", "Model, draft and data set are pinned by revision.", _revisions),
    Rule("uniform-client", "The client's arguments are those of everybody.", _uniform_client),
    Rule("uniform-stream", "Every token is streamed as it comes.", _uniform_stream),
    Rule(
        "golden-acceptance",
        "Under load, drafts are accepted as often as their golden curve says.",
        _golden_acceptance,
    ),
    Rule("trained-weights", "The model is a trained one.", _random_weights),
)
"""Rules whose breach keeps numbers from being published."""


def broken_rules(point: Point) -> tuple[Problem, ...]:
    """Every breach that refuses a point."""
    return tuple(problem for rule in REFUSING for problem in rule.broken(point))


def blockers(
    point: Point, row: GoldenRow | None, memory: MemoryVerdict, gap: str | None
) -> tuple[str, ...]:
    """Every reason why numbers of a point could not be published.

    Args:
        point: it.
        row: golden acceptance it is held to, None where none is forced.
        memory: what the planner says.
        gap: why its serving plan counts as not evaluated, None if it does not.
    """
    found = [
        f"{problem.path} {problem.message}" for rule in PUBLISHING for problem in rule.broken(point)
    ]
    if row is not None and row.draft_revision == UNKNOWN:
        found.append(f"the golden curve of {row.draft} does not say which revision it measured")
    if memory.state == "unpriced":
        found.extend(f"memory {reason}" for reason in memory.reasons)
    if gap is not None:
        found.append(gap)
    return tuple(found)
