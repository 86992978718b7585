"""From a stream of tokens to events: text, stop strings, reasoning and tool calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from gnomon.engine.errors import EngineError
from gnomon.engine.runner.messages import EngineFacts, EngineStats, TokenOutput
from gnomon.engine.scheduler.request import FinishReason, SamplingParams
from gnomon.engine.serve.detokenizer import Detokenizer
from gnomon.engine.serve.errors import ApiError, from_engine, unavailable
from gnomon.engine.serve.metrics import Metrics, RequestTimer
from gnomon.engine.serve.parsers.base import Event, OutputParser
from gnomon.engine.serve.stops import StopStrings
from gnomon.engine.serve.tokenizer import Tokenizer


class Engine(Protocol):
    """What the server needs of an engine; :class:`gnomon.engine.runner.client.EngineClient`."""

    @property
    def is_ready(self) -> bool:
        """Whether it can generate."""
        ...

    @property
    def death(self) -> EngineError | None:
        """Why it is gone, None while it lives."""
        ...

    @property
    def facts(self) -> EngineFacts:
        """What it really serves, once ready."""
        ...

    def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        grammar: str | None = None,
    ) -> AsyncGenerator[TokenOutput, None]:
        """The new tokens of each step; closing the iterator early aborts the request."""
        ...

    async def stats(self) -> EngineStats:
        """Counters and gauges now."""
        ...


@dataclass(frozen=True)
class Usage:
    """Exact token counts of one request."""

    prompt: int
    cached: int
    completion: int
    reasoning: int


@dataclass(frozen=True)
class Finished:
    """The last item of a generation.

    Attributes:
        truncated: a token limit ended it.
    """

    truncated: bool
    usage: Usage


@dataclass(frozen=True)
class Generation:
    """One generation to run.

    Attributes:
        stops: stop strings.
        parser: fresh, for this generation alone.
        hidden: ids that give no text.
        grammar: source of the grammar the output must follow; None for any output.
    """

    id: str
    prompt_ids: Sequence[int]
    sampling: SamplingParams
    stops: Sequence[str]
    parser: OutputParser
    hidden: Set[int]
    grammar: str | None = None


@dataclass
class Transcript:
    """The pure part: token ids in, events out, counting as it goes."""

    detokenizer: Detokenizer
    stops: StopStrings
    parser: OutputParser
    completion: int = field(default=0, init=False)
    reasoning: int = field(default=0, init=False)

    def feed(self, token_ids: Sequence[int], *, ended: bool) -> list[Event]:
        """Take new tokens; those after a stop string are not counted.

        Args:
            token_ids: of one step.
            ended: the last of them is an end-of-sequence or stop token, which gives no text.
        """
        events: list[Event] = []
        for at, token_id in enumerate(token_ids):
            self.completion += 1
            before = self.parser.in_reasoning
            if not (ended and at == len(token_ids) - 1):
                events += self._text(self.stops.feed(self.detokenizer.feed(token_id)))
            self.reasoning += before or self.parser.in_reasoning
            if self.stops.found:
                break
        return events

    def finish(self, *, truncated: bool) -> list[Event]:
        """Take the end."""
        events = self._text(self.stops.finish())
        return events + self.parser.finish(truncated=truncated)

    def _text(self, text: str) -> list[Event]:
        return self.parser.feed(text) if text else []


async def generate(
    engine: Engine,
    tokenizer: Tokenizer,
    metrics: Metrics,
    job: Generation,
    timeout_s: float | None = None,
) -> AsyncGenerator[list[Event] | Finished, None]:
    """Run one generation: the events of each step, then :class:`Finished`.

    Leaving the iteration early aborts the request in the engine, and so does the time-out.

    Raises:
        ApiError: the engine refused the request, or died.
    """
    transcript = Transcript(Detokenizer(tokenizer, job.hidden), StopStrings(job.stops), job.parser)
    timer = metrics.start()
    steps = engine.generate(job.id, job.prompt_ids, job.sampling, job.grammar)
    cached = 0
    reason: FinishReason | None = None
    try:
        async with contextlib.aclosing(steps):
            async for step in _until(steps, timeout_s):
                timer.step(len(step.token_ids), step.queue_s)
                cached = max(cached, step.num_cached)
                reason = step.finish_reason
                if reason is FinishReason.ABORT:
                    raise unavailable("The server cut this request short: it is shutting down.")
                events = transcript.feed(step.token_ids, ended=reason is FinishReason.STOP)
                if transcript.stops.found:
                    reason = FinishReason.STOP
                if events:
                    yield events
                if reason is not None:
                    break
    except EngineError as error:
        raise from_engine(error) from error
    finally:
        _close(timer, reason)
    truncated = reason is FinishReason.LENGTH
    last = transcript.finish(truncated=truncated)
    if last:
        yield last
    usage = Usage(len(job.prompt_ids), cached, transcript.completion, transcript.reasoning)
    yield Finished(truncated, usage)


async def _until(
    steps: AsyncGenerator[TokenOutput, None], timeout_s: float | None
) -> AsyncGenerator[TokenOutput, None]:
    """The steps that come in time.

    Raises:
        ApiError: the time is over.
    """
    if timeout_s is None:
        async for step in steps:
            yield step
        return
    end = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            async with asyncio.timeout_at(end):
                step = await anext(steps)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise ApiError(
                504,
                f"The request took longer than {timeout_s:g} s, the most this server allows.",
                code="request_timeout",
            ) from None
        yield step


def _close(timer: RequestTimer, reason: FinishReason | None) -> None:
    timer.finish(FinishReason.ABORT if reason is None else reason)
