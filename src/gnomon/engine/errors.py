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


class GrammarTooSlow(EngineError):
    """Following the grammar of a request would hold up the others; it was ended."""


class NumericsError(EngineError):
    """The model produced logits that are not finite; going on would print wrong numbers."""


class EngineDead(EngineError):
    """The engine core has gone; no request can be served any more."""


class EngineStalled(EngineError):
    """The engine core gives no sign of life, or one of its steps does not end; it may come back."""


class EngineBusy(EngineError):
    """The engine has as many open requests as it takes; trying again later may work."""


class StartupFailed(EngineError):
    """The engine core could not start, for a reason that is not a startup rule."""


class OutOfMemory(EngineError):
    """An allocation failed at startup; the message has the numbers of the memory plan."""


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


class LayoutError(EngineError):
    """A cache format cannot store this page shape; the message names what it needs."""


class NonFiniteCacheInput(EngineError):
    """NaN or Inf was about to be cached, and the engine was told to refuse rather than sanitise."""


class AttentionContractError(EngineError):
    """A step asks attention for what its kernels cannot check: the message names row and reason."""
