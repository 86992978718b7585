"""From options to a model and plan that passed every startup rule; loads no weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gnomon.engine.device import DeviceFacts, host_facts
from gnomon.engine.errors import StartupRefused
from gnomon.engine.memory import MemoryPlan, plan_memory
from gnomon.engine.models.config import ModelConfig, load_config
from gnomon.engine.options import EngineOptions
from gnomon.engine.rules import check


@dataclass(frozen=True)
class Startup:
    """What an engine is about to run.

    Attributes:
        path: checkpoint directory.
        config: the model.
        options: what was asked.
        device: where it runs.
        plan: memory, blocks and the maximum length included.
    """

    path: Path
    config: ModelConfig
    options: EngineOptions
    device: DeviceFacts
    plan: MemoryPlan


def prepare(path: Path, options: EngineOptions) -> Startup:
    """Read the checkpoint's config, plan the memory and check every rule.

    Raises:
        StartupRefused: with every broken rule.
        CheckpointError: the config is missing or cannot be used.
    """
    config, device = load_config(path, options), host_facts()
    plan = plan_memory(config, options, device.kind)
    refusals = check(config, device, options, plan)
    if refusals:
        raise StartupRefused(refusals)
    return Startup(path, config, options, device, plan)
