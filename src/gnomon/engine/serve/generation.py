"""From a stream of tokens to events: text, stop strings, reasoning and tool calls."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from gnomon.engine.errors import EngineError
from gnomon.engine.runner.messages import EngineFacts, EngineStats, TokenOutput
from gnomon.engine.runner.scored import Logprobs
from gnomon.engine.scheduler.request import FinishReason, SamplingParams
from gnomon.engine.serve.accounts import PromptScores, Token, Usage
from gnomon.engine.serve.detokenizer import Detokenizer
from gnomon.engine.serve.errors import from_engine, too_late, unavailable
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
    def stall(self) -> EngineError | None:
        """Why it does not answer just now, None while it does."""
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

    async def flush_cache(self, *, host: bool = False) -> EngineStats:
        """Forget every block that no request holds, and with ``host`` the host's copies too."""
        ...

    async def stats(self) -> EngineStats:
        """Counters and gauges now."""
        ...


@dataclass(frozen=True)
class Finished:
    """The last item of a generation.

    Attributes:
        truncated: a token limit ended it, or it was cancelled.
        stop: the stop string that ended it.
        cancelled: it was cancelled.
    """

    truncated: bool
    usage: Usage
    stop: str | None = None
    cancelled: bool = False


@dataclass(frozen=True)
class Generation:
    """One generation to run.

    Attributes:
        stops: stop strings.
        parser: fresh, for this generation alone.
        hidden: ids that give no text.
        cancel: ends it early when set; None cannot be cancelled.
        grammar: source of the grammar the output must follow; None for any output.
        deadline: when it must have ended, by the loop's clock; None for never.
        tell: what is told besides text.
        start: when it may start; None for at once.
    """

    id: str
    prompt_ids: Sequence[int]
    sampling: SamplingParams
    stops: Sequence[str]
    parser: OutputParser
    hidden: Set[int]
    cancel: asyncio.Event | None = None
    grammar: str | None = None
    deadline: float | None = None
    tell: Tell = field(default_factory=lambda: Tell())
    start: Start | None = None

    def choices(self, count: int, *, shares_prompt: bool) -> list[Generation]:
        """This generation as ``count`` choices of an answer, each with randomness of its own.

        Choice i of a seeded request has the seed plus i, so that the first is the request's with
        one choice. The first alone scores the prompt.

        Args:
            count: how many.
            shares_prompt: the first computes the prompt and the others find it in the prefix cache.
                So they start when it has its first token, as they do where it scores the prompt or
                has a grammar compiled for all.
        """
        if count == 1:
            return [self]
        scores = self.sampling.prompt_logprobs is not None
        waits = shares_prompt or scores or self.grammar is not None
        computed = asyncio.Event() if waits else None
        return [
            replace(
                self,
                id=f"{self.id}-{at}",
                sampling=_of_choice(self.sampling, at),
                parser=copy.deepcopy(self.parser),
                start=Start(computed, leads=at == 0) if computed is not None else None,
            )
            for at in range(count)
        ]


@dataclass(frozen=True)
class Tell:
    """What a generation tells besides text.

    Attributes:
        tokens: every token, with its scores if they are computed.
        usage: what it has cost after every step.
        stop: the stop string or token that ended it, as part of the text.
    """

    tokens: bool = False
    usage: bool = False
    stop: bool = False


@dataclass(frozen=True)
class Start:
    """Choices of one prompt: the first leads, the others wait until it has its first token."""

    computed: asyncio.Event
    leads: bool

    async def steps(
        self, steps: AsyncGenerator[TokenOutput, None]
    ) -> AsyncGenerator[TokenOutput, None]:
        """The steps, from when they may start."""
        if not self.leads:
            await self.computed.wait()
        try:
            async with contextlib.aclosing(steps):
                async for step in steps:
                    self.computed.set()
                    yield step
        finally:
            self.computed.set()  # whatever became of the first, the others need not wait


def _of_choice(sampling: SamplingParams, choice: int) -> SamplingParams:
    seed = sampling.seed
    if seed is not None:
        seed = (seed + choice + 2**63) % 2**64 - 2**63  # stays a signed 64-bit number
    scored = sampling.prompt_logprobs if choice == 0 else None
    return msgspec.structs.replace(sampling, seed=seed, prompt_logprobs=scored)


@dataclass
class Transcript:
    """The pure part: token ids in, events out, counting as it goes."""

    detokenizer: Detokenizer
    stops: StopStrings
    parser: OutputParser
    tell: Tell = field(default_factory=Tell)
    characters: int = field(default=0, init=False)
    completion: int = field(default=0, init=False)
    reasoning: int = field(default=0, init=False)

    def feed(
        self, token_ids: Sequence[int], *, ended: bool, scores: Sequence[Logprobs] = ()
    ) -> list[Event]:
        """Take new tokens; those after a stop string are not counted.

        Args:
            token_ids: of one step.
            ended: the last of them is an end-of-sequence or stop token, which gives no text unless
                the stop is to be told.
            scores: of the tokens, if they are computed.
        """
        events: list[Event] = []
        for at, token_id in enumerate(token_ids):
            self.completion += 1
            before = self.parser.in_reasoning
            text, told = "", []
            if self.tell.stop or not (ended and at == len(token_ids) - 1):
                text = self.detokenizer.feed(token_id)
                told = self._text(self.stops.feed(text))
            reasoning = before or self.parser.in_reasoning
            self.reasoning += reasoning
            if self.tell.tokens:
                scored = scores[at] if scores else None
                events.append(Token(token_id, self.characters, scored, reasoning))
            self.characters += len(text)
            events += told
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
    begin: Callable[[], None] = lambda: None,
) -> AsyncGenerator[list[Event] | Finished, None]:
    """Run one generation: the events of each step, then :class:`Finished`.

    Leaving the iteration early aborts the request in the engine, and so does the deadline.

    Args:
        engine: that generates.
        tokenizer: of the model.
        metrics: that time it.
        job: what to generate.
        timeout_s: what the deadline allowed, for the error that says so.
        begin: called with the first token.

    Raises:
        ApiError: the engine refused the request, or died.
    """
    transcript = Transcript(
        Detokenizer(tokenizer, job.hidden),
        StopStrings(job.stops, include=job.tell.stop),
        job.parser,
        job.tell,
    )
    timer = metrics.start()
    steps = engine.generate(job.id, job.prompt_ids, job.sampling, job.grammar)
    steps = steps if job.start is None else job.start.steps(steps)
    cached = 0
    reason: FinishReason | None = None
    try:
        timely = _until(steps, job.deadline, timeout_s or 0, job.cancel)
        async with contextlib.aclosing(steps), contextlib.aclosing(timely):
            async for step in timely:
                begin()
                timer.step(len(step.token_ids), step.queue_s)
                cached = max(cached, step.num_cached)
                reason = step.finish_reason
                if reason is FinishReason.ABORT:
                    raise unavailable("The server cut this request short: it is shutting down.")
                ended = reason is FinishReason.STOP
                events = transcript.feed(step.token_ids, ended=ended, scores=step.logprobs)
                if job.tell.usage:
                    events.insert(0, _usage(job, cached, transcript))
                if step.prompt_logprobs:
                    events.insert(0, PromptScores(step.prompt_logprobs))
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
    cancelled = reason is None and job.cancel is not None and job.cancel.is_set()
    truncated = cancelled or reason is FinishReason.LENGTH
    last = transcript.finish(truncated=truncated)
    if last:
        yield last
    usage = _usage(job, cached, transcript)
    yield Finished(truncated, usage, transcript.stops.found_stop, cancelled)


def _usage(job: Generation, cached: int, transcript: Transcript) -> Usage:
    return Usage(len(job.prompt_ids), cached, transcript.completion, transcript.reasoning)


async def _until(
    steps: AsyncGenerator[TokenOutput, None],
    end: float | None,
    timeout_s: float,
    cancel: asyncio.Event | None,
) -> AsyncGenerator[TokenOutput, None]:
    """The steps that come in time and before the generation is cancelled.

    Raises:
        ApiError: the time is over.
    """
    if end is None and cancel is None:
        async for step in steps:
            yield step
        return
    loop = asyncio.get_running_loop()
    cancelled = loop.create_task((cancel or asyncio.Event()).wait())
    step_task: asyncio.Task[TokenOutput | None] | None = None
    try:
        while True:
            step_task = loop.create_task(_next(steps))
            left = None if end is None else max(end - loop.time(), 0)
            await asyncio.wait(
                (step_task, cancelled), timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            if cancelled.done():
                return
            if not step_task.done():
                raise too_late(timeout_s)
            found = step_task.result()
            if found is None:
                return
            yield found
    finally:
        tasks = [task for task in (cancelled, step_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _next(steps: AsyncGenerator[TokenOutput, None]) -> TokenOutput | None:
    """The next step; None at the end."""
    async for step in steps:
        return step
    return None


def _close(timer: RequestTimer, reason: FinishReason | None) -> None:
    timer.finish(FinishReason.ABORT if reason is None else reason)
