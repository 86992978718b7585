"""Running parsers over text cut into chunks, and what comes out as plain data."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from gnomon.engine.serve.parsers.base import (
    ContentDelta,
    Event,
    OutputParser,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from gnomon.engine.serve.parsers.registry import reasoning_dialect, tool_dialect

NS = "]<]minimax[>["

TOOLS: dict[str, dict[str, Any]] = {
    "book_room": {
        "type": "object",
        "properties": {
            "hotel": {"type": "string"},
            "nights": {"type": "integer"},
            "price": {"type": "number"},
            "breakfast": {"type": "boolean"},
            "guests": {"type": "array", "items": {"type": "string"}},
            "ages": {"type": "array", "items": {"type": "integer"}},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "address": {"$ref": "#/$defs/address"},
            "rooms": {"type": "array", "items": {"$ref": "#/$defs/room"}},
            "either": {"type": ["integer", "string"]},
            "view": {"enum": ["sea", "1"]},
        },
        "$defs": {
            "address": {
                "type": "object",
                "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
            },
            "room": {
                "type": "object",
                "properties": {"beds": {"type": "integer"}, "name": {"type": "string"}},
            },
        },
    },
    "now": {"type": "object", "properties": {}},
}


@dataclass
class Said:
    """A reply put together from events, with the rules every stream must keep checked."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    complete: list[bool] = field(default_factory=list)

    @property
    def arguments(self) -> list[Any]:
        return [json.loads(text) for _, text in self.calls]


def said(events: Iterable[Event]) -> Said:
    found = Said()
    for event in events:
        match event:
            case ContentDelta(text):
                assert text
                found.content += text
            case ReasoningDelta(text):
                assert text
                found.reasoning += text
            case ToolCallStart(index, name):
                assert index == len(found.calls) == len(found.complete)
                found.calls.append((name, ""))
            case ToolArgumentsDelta(index, text):
                assert text
                assert index == len(found.calls) - 1
                found.calls[index] = (found.calls[index][0], found.calls[index][1] + text)
            case ToolCallEnd(index, complete):
                assert index == len(found.complete)
                found.complete.append(complete)
    assert len(found.complete) == len(found.calls)
    return found


def read(
    chunks: str | Sequence[str],
    *,
    prompt: str = "",
    truncated: bool = False,
    tools: dict[str, Any] | None = None,
    reasoning: bool = True,
    dialect: tuple[str, str] = ("minimax_m3", "minimax_m3"),
) -> Said:
    """Parse a reply that arrives in the given chunks (a string is one chunk).

    ``dialect`` names the tool-call and the reasoning parser.
    """
    calls, thoughts = tool_dialect(dialect[0]), reasoning_dialect(dialect[1])
    parser = OutputParser(
        thoughts.parser(prompt) if reasoning and thoughts else None,
        calls.parser(TOOLS if tools is None else tools) if calls else None,
    )
    events: list[Event] = []
    for chunk in [chunks] if isinstance(chunks, str) else chunks:
        events += parser.feed(chunk)
    return said(events + parser.finish(truncated=truncated))


def block(*invokes: str) -> str:
    inner = "".join(invoke + "\n" for invoke in invokes)
    return f"{NS}<tool_call>\n{inner}{NS}</tool_call>"


def invoke(name: str, *elements: str) -> str:
    return f'{NS}<invoke name="{name}">{"".join(elements)}{NS}</invoke>'


def element(key: str, *inside: str) -> str:
    return f"{NS}<{key}>{''.join(inside)}{NS}</{key}>"


@st.composite
def cuts(draw: st.DrawFn, text: str) -> list[str]:
    """Any way to cut a text into chunks, single characters among them."""
    if draw(st.booleans()):
        return list(text)
    places = draw(st.lists(st.integers(0, len(text)), max_size=12))
    bounds = [0, *sorted(places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]
