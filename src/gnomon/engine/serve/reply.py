"""A whole answer, put together from events; the same events a stream is made of."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from gnomon.engine.runner.scored import Logprobs
from gnomon.engine.serve.accounts import PromptScores, Token, Usage
from gnomon.engine.serve.generation import Finished
from gnomon.engine.serve.ids import new_id
from gnomon.engine.serve.parsers.base import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from gnomon.engine.serve.served import Events
from gnomon.engine.serve.side_by_side import side_by_side


@dataclass
class Call:
    """One tool call."""

    id: str
    name: str
    arguments: str = ""
    complete: bool = False


@dataclass
class Reply:
    """Everything one generation said so far."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    prompt: tuple[Logprobs, ...] = ()
    truncated: bool = False
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0, 0))

    def take(self, events: Sequence[Event]) -> None:
        """Add events; a call gets its id when it starts, unless the model gave it one."""
        for event in events:
            match event:
                case ContentDelta(text):
                    self.content += text
                case ReasoningDelta(text):
                    self.reasoning += text
                case ToolCallStart(_, name, call_id):
                    self.calls.append(Call(call_id or new_id("call_"), name))
                case ToolArgumentsDelta(index, text):
                    self.calls[index].arguments += text
                case ToolCallEnd(index, complete):
                    self.calls[index].complete = complete
                case Token():
                    self.tokens.append(event)
                case PromptScores(scores):
                    self.prompt = scores
                case Usage():
                    self.usage = event

    def end(self, finished: Finished) -> None:
        """Take the end."""
        self.truncated, self.usage = finished.truncated, finished.usage

    @property
    def finish_reason(self) -> str:
        """OpenAI's finish reason: a cut-off reply is "length", whatever it holds."""
        if self.truncated:
            return "length"
        return "tool_calls" if any(call.complete for call in self.calls) else "stop"


async def collect(events: Events) -> Reply:
    """Run a generation to its end."""
    return (await collect_all([events]))[0]


async def collect_all(runs: Sequence[Events]) -> list[Reply]:
    """Run generations side by side to their ends."""
    replies = [Reply() for _ in runs]
    async with contextlib.aclosing(side_by_side(runs)) as told:
        async for at, item in told:
            if isinstance(item, Finished):
                replies[at].end(item)
            else:
                replies[at].take(item)
    return replies
