"""The engine's exceptions: every one is a sentence a user can act on."""

from __future__ import annotations

from dataclasses import dataclass


class EngineError(Exception):
    """Base of every error the engine raises on purpose."""


class OptionsError(EngineError):
    """An option cannot be parsed; the message names the option, the value and what is allowed."""


class CheckpointError(EngineError):
    """A checkpoint cannot be loaded; the message names the file or tensor."""


class ModelConfigError(CheckpointError):
    """A model's config.json is missing a field, contradicts itself or asks for the unsupported."""


class AdmissionError(EngineError):
    """A request can never fit this engine, however long it waits."""


@dataclass(frozen=True)
class Refusal:
    """One reason why a combination of model, device and options cannot run.

    Attributes:
        code: stable kebab-case identifier, for tests and tables.
        message: what was asked and why it cannot be.
        remedy: what to change.
    """

    code: str
    message: str
    remedy: str


class StartupRefused(EngineError):
    """The engine cannot start; carries every reason at once.

    Attributes:
        refusals: all reasons, in the order of the rule table.
    """

    def __init__(self, refusals: tuple[Refusal, ...]) -> None:
        self.refusals = refusals
        lines = [f"[{r.code}] {r.message} {r.remedy}" for r in refusals]
        super().__init__("the engine cannot start:\n" + "\n".join(f"  - {line}" for line in lines))
