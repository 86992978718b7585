"""A whole answer, put together from events; the same events a stream is made of."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from gnomon.engine.serve.generation import Finished, Usage
from gnomon.engine.serve.ids import new_id
from gnomon.engine.serve.parsers.base import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)


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

    @property
    def finish_reason(self) -> str:
        """OpenAI's finish reason: a cut-off reply is "length", whatever it holds."""
        if self.truncated:
            return "length"
        return "tool_calls" if any(call.complete for call in self.calls) else "stop"


async def collect(events: AsyncGenerator[list[Event] | Finished, None]) -> Reply:
    """Run a generation to its end."""
    reply = Reply()
    async with contextlib.aclosing(events):
        async for item in events:
            if isinstance(item, Finished):
                reply.truncated, reply.usage = item.truncated, item.usage
            else:
                reply.take(item)
    return reply
