"""What one step computes, and what it gave."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon.engine.scheduler.request import FinishReason, Request


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of one request in one step.

    Attributes:
        request: the request; read, never changed, until the step is committed.
        start: first position computed.
        stop: position behind the last.
        samples: whether the logits of the last position choose a new token.
    """

    request: Request
    start: int
    stop: int
    samples: bool


@dataclass(frozen=True)
class Step:
    """One forward: chunks of distinct requests, decode rows first.

    Attributes:
        chunks: at most one a request; empty if there is nothing to do.
        preempted: ids of requests that lost their blocks while this step was made.
    """

    chunks: tuple[Chunk, ...]
    preempted: tuple[str, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Token rows of the step."""
        return sum(chunk.stop - chunk.start for chunk in self.chunks)


class StepInTheMaking:
    """Chunks chosen so far and what is left of the token budget."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.preempted: list[str] = []
        self._chunks: dict[str, Chunk] = {}

    def put(self, request: Request, count: int) -> None:
        """Add the request's next ``count`` tokens."""
        stop = request.num_computed + count
        samples = stop == request.num_tokens and request.sampling.max_tokens > 0
        self._chunks[request.id] = Chunk(request, request.num_computed, stop, samples)
        self.budget -= count

    def preempt(self, request: Request) -> None:
        """Take back what was added for a request that has lost its blocks."""
        self.preempted.append(request.id)
        chunk = self._chunks.pop(request.id, None)
        if chunk is not None:
            self.budget += chunk.stop - chunk.start

    def done(self) -> Step:
        """The step."""
        return Step(tuple(self._chunks.values()), tuple(self.preempted))


@dataclass(frozen=True)
class Progress:
    """A token a request gained by a step, and why it ended if it did.

    ``token_id`` None: it asked for no token, and its prompt is computed.
    """

    request: Request
    token_id: int | None
    finish_reason: FinishReason | None
