"""From options to a model and plan that passed every startup rule; loads no weights."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from gnomon.engine.device import DeviceFacts, host_facts
from gnomon.engine.draft_memory import DRAFTS, DraftMemory
from gnomon.engine.errors import OptionsError, Refusal, StartupRefused
from gnomon.engine.memory import MemoryPlan, alternatives, plan_memory
from gnomon.engine.models.config import ModelConfig, load_config, parse_config, reuse_of_options
from gnomon.engine.models.loader import (
    asked_formats,
    has_weights,
    loaded_formats,
    resolve_model,
    stored_tensors,
)
from gnomon.engine.models.presets.released import RELEASED
from gnomon.engine.models.weight_formats import RELEASED_SCHEMES, Formats, plain_formats
from gnomon.engine.options import CacheFormat, EngineOptions, LoadFormat, WeightFormat
from gnomon.engine.rules import check

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Startup:
    """What an engine is about to run.

    Attributes:
        path: checkpoint directory; None for a published model that is known by its config alone.
        config: the model.
        options: what was asked.
        device: where it runs.
        plan: memory, blocks and the maximum length included.
        formats: of the weight matrices, as they are or would be loaded.
        draft: a draft that is planned for.
    """

    path: Path | None
    config: ModelConfig
    options: EngineOptions
    device: DeviceFacts
    plan: MemoryPlan
    formats: Formats = plain_formats
    draft: DraftMemory | None = None

    def alternatives(self) -> dict[CacheFormat, MemoryPlan]:
        """What each cache layout would give; see :func:`gnomon.engine.memory.alternatives`."""
        return alternatives(self.config, self.options, self.device, self.formats, self.draft)


def prepare(path: Path, options: EngineOptions) -> Startup:
    """Read the checkpoint's config and headers, plan the memory and check every rule.

    Raises:
        StartupRefused: with every broken rule.
        CheckpointError: the checkpoint cannot be used.
    """
    config = load_config(path, options)
    formats = _formats(path, config, options, None)
    return _accepted(*_planned(path, config, options, host_facts(), formats))


def survey(
    options: EngineOptions,
    device: DeviceFacts | None = None,
    weights: str | None = None,
    draft: str | None = None,
) -> tuple[Startup, tuple[Refusal, ...]]:
    """Plan without starting: also for machines and weights that are not here.

    Args:
        options: ``model`` may name a published model (a key of RELEASED), a directory or a preset.
        device: where it would run; this host's CPU if left out.
        weights: what published weights to plan for (a key of RELEASED_SCHEMES); only for a model
            without weight files.
        draft: a key of DRAFTS.

    Returns:
        What would run, and every rule it breaks.

    Raises:
        CheckpointError: the model cannot be read.
        OptionsError: ``weights`` or ``draft`` is unknown, or the weights are known from files.
    """
    for flag, value, known in (
        ("--weights", weights, RELEASED_SCHEMES),
        ("--draft", draft, DRAFTS),
    ):
        if value is not None and value not in known:
            raise OptionsError(f"{flag} {value!r} is unknown; choose one of {', '.join(known)}")
    path = None
    if options.model in RELEASED:
        config = parse_config(RELEASED[options.model](), reuse_of_options(options))
    else:
        path = resolve_model(options.model)
        config = load_config(path, options)
    formats = _formats(path, config, options, weights)
    one = None if draft is None else DRAFTS[draft]
    return _planned(path, config, options, device or host_facts(), formats, one)


def describe(
    options: EngineOptions,
    device: DeviceFacts | None = None,
    weights: str | None = None,
    draft: str | None = None,
) -> Startup:
    """:func:`survey`, refused if any rule is broken.

    Raises:
        StartupRefused: with every broken rule.
        CheckpointError: the model cannot be read.
        OptionsError: see :func:`survey`.
    """
    return _accepted(*survey(options, device, weights, draft))


def _formats(
    path: Path | None, config: ModelConfig, options: EngineOptions, weights: str | None
) -> Formats:
    """Formats of the matrices once loaded, from the files if there are any."""
    if path is not None and has_weights(path) and options.load_format is not LoadFormat.DUMMY:
        if weights is not None:
            raise OptionsError(
                f"--weights {weights} would have no effect: {path} has weights, and their files "
                "say what they are; use --expert-weights and --linear-weights to pack them"
            )
        return loaded_formats(stored_tensors(path, config), options)
    asked, base = asked_formats(options), RELEASED_SCHEMES[weights or "bf16"][1]

    def formats(name: str) -> WeightFormat:
        return asked(name) or base(name)

    return formats


def _planned(
    path: Path | None,
    config: ModelConfig,
    options: EngineOptions,
    device: DeviceFacts,
    formats: Formats,
    draft: DraftMemory | None = None,
) -> tuple[Startup, tuple[Refusal, ...]]:
    plan = plan_memory(config, options, device, formats, draft)
    if len(plan.budgets) > 1:
        counts = ", ".join(f"{budget.device} {budget.num_blocks}" for budget in plan.budgets)
        logger.info("blocks that fit each rank: %s; all take %d", counts, plan.num_blocks)
    startup = Startup(path, config, options, device, plan, formats, draft)
    return startup, check(config, device, options, plan)


def _accepted(startup: Startup, refusals: tuple[Refusal, ...]) -> Startup:
    if refusals:
        raise StartupRefused(refusals)
    return startup
