"""The content blocks of an Anthropic message, and the events that tell of their growth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gnomon.engine.serve.ids import new_id
from gnomon.engine.serve.parsers.base import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)

Told = dict[str, Any]


class ContentBlocks:
    """Blocks in order of appearance, one growing at a time.

    Attributes:
        called: there is a whole call.
    """

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._open = False
        self._input = ""
        self.called = False

    def done(self) -> list[dict[str, Any]]:
        """All blocks."""
        return self._blocks

    def take(self, events: Sequence[Event]) -> list[Told]:
        """Add events of a generation; returns what to tell the client."""
        told: list[Told] = []
        for event in events:
            match event:
                case ContentDelta(text):
                    told += self._grow("text", text)
                case ReasoningDelta(text):
                    told += self._grow("thinking", text)
                case ToolCallStart(_, name, call_id):
                    block = {"id": call_id or new_id("toolu_"), "name": name, "input": {}}
                    told += self._start({"type": "tool_use", **block})
                    self._input = ""
                case ToolArgumentsDelta(_, text):
                    self._input += text
                    told.append(self._delta({"type": "input_json_delta", "partial_json": text}))
                case ToolCallEnd(_, complete):
                    self._blocks[-1]["input"] = json.loads(self._input)
                    self.called = self.called or complete
                    told += self.close()
        return told

    def close(self) -> list[Told]:
        """End the block that grows, if there is one."""
        if not self._open:
            return []
        self._open = False
        return [{"type": "content_block_stop", "index": len(self._blocks) - 1}]

    def _grow(self, kind: str, text: str) -> list[Told]:
        told: list[Told] = []
        if not self._open or self._blocks[-1]["type"] != kind:
            empty = {"type": kind, kind: ""}
            told += self._start(empty | {"signature": ""} if kind == "thinking" else empty)
        self._blocks[-1][kind] += text
        return [*told, self._delta({"type": f"{kind}_delta", kind: text})]

    def _start(self, block: dict[str, Any]) -> list[Told]:
        told = self.close()
        self._blocks.append(block)
        self._open = True
        at = len(self._blocks) - 1
        return [*told, {"type": "content_block_start", "index": at, "content_block": dict(block)}]

    def _delta(self, delta: dict[str, Any]) -> Told:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}
