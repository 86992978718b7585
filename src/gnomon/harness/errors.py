"""The harness's exceptions: every one is a sentence a user can act on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class HarnessError(Exception):
    """Base of every error the harness raises on purpose."""


@dataclass(frozen=True)
class Problem:
    """One reason why a recipe cannot run.

    Attributes:
        path: where in the recipe, dotted (``engine.flags.kv_cache_dtype``), or ``recipe``.
        message: what was asked and why it cannot be.
        remedy: what to change.
    """

    path: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message} {self.remedy}".rstrip()


class RecipeRefused(HarnessError):
    """A recipe cannot run; carries every problem at once, found before anything started.

    Attributes:
        source: the recipe's file.
        problems: all of them, in the order of the recipe.
    """

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{source} is refused, {count}:\n{lines}")


class StageFailed(HarnessError):
    """A stage of a run cannot be completed.

    Attributes:
        reason: one sentence: what happened and what to look at.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class PreflightFailed(StageFailed):
    """The machine is not ready for the run: a port, disk space or a client is missing."""


class ServerNotReady(StageFailed):
    """The server did not become ready within its deadline."""


class ServerDied(StageFailed):
    """The server process ended while the run still needed it."""


class AttestationFailed(StageFailed):
    """What is served differs from what the recipe asked, or the server cannot say."""


class TeardownIncomplete(StageFailed):
    """Something the run started is still there after it was told to end."""


class RunCancelled(HarnessError):
    """Work stopped because the run's cancel token was set; the token holds the cause."""


class RunFolderError(HarnessError):
    """A run folder is missing, incomplete, or was written by another version."""


class StoreError(HarnessError):
    """A store of runs, a packed run or a key cannot be used as asked."""
