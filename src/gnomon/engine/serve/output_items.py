"""The output items of a response, and the events that tell of their growth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gnomon.engine.serve.accounts import Token
from gnomon.engine.serve.ids import new_id
from gnomon.engine.serve.parsers.base import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from gnomon.engine.serve.scores import ScoreWriter

Told = dict[str, Any]

_TEXT = "output_text"
_REASONING = "reasoning_text"


class OutputItems:
    """Items in order of appearance; at most one text item and one call grow at a time.

    Args:
        seal: makes the opaque form of reasoning, which its items then have.
        writer: writes the scores of the text's tokens, which text then has.
    """

    def __init__(
        self, seal: Callable[[str], str] | None = None, writer: ScoreWriter | None = None
    ) -> None:
        self._writer = writer
        self._tokens: list[Token] = []  # whose text has not come yet
        self._seal = seal
        self._items: list[dict[str, Any]] = []
        self._open: int | None = None  # index of the text or reasoning item that grows
        self._calls: dict[int, int] = {}  # call index to item index

    def done(self) -> list[dict[str, Any]]:
        """All items so far."""
        return [dict(item) for item in self._items]

    def take(self, events: Sequence[Event]) -> list[Told]:
        """Add events of a generation; returns what to tell the client."""
        told: list[Told] = []
        for event in events:
            match event:
                case Token():
                    # Tokens of reasoning and calls are no part of any output_text.
                    self._tokens += [] if event.reasoning else [event]
                    continue
                case ContentDelta(text):
                    told += self._text("message", _TEXT, text)
                case ReasoningDelta(text):
                    told += self._text("reasoning", _REASONING, text)
                case ToolCallStart(index, name, call_id):
                    told += self._close("completed") + self._start_call(index, name, call_id)
                case ToolArgumentsDelta(index, text):
                    told.append(self._arguments(index, text))
                case ToolCallEnd(index, complete):
                    told += self._end_call(index, complete)
                case _:
                    continue
            self._tokens = []
        return told

    def finish(self, *, truncated: bool) -> list[Told]:
        """End the item that still grows; an answer without any item gets an empty message."""
        told: list[Told] = [] if self._items else self._text("message", _TEXT, "")
        return told + self._close("incomplete" if truncated else "completed")

    def _text(self, kind: str, part: str, text: str) -> list[Told]:
        told: list[Told] = []
        if self._open is None or self._items[self._open]["type"] != kind:
            told = self._close("completed") + self._open_text(kind, part)
        assert self._open is not None
        item = self._items[self._open]
        item["content"][0]["text"] += text
        scores: list[Told] = []
        if part == _TEXT:
            scores = self._writer.content(self._tokens) if self._writer is not None else []
            item["content"][0]["logprobs"] = [*item["content"][0]["logprobs"], *scores]
        if text:
            delta: Told = {"type": f"response.{part}.delta", **self._place(), "delta": text}
            told.append({**delta, "logprobs": scores} if part == _TEXT else delta)
        return told

    def _open_text(self, kind: str, part: str) -> list[Told]:
        item: dict[str, Any] = {"type": kind, "id": new_id("msg_" if kind == "message" else "rs_")}
        if kind == "message":
            item["role"] = "assistant"
        else:
            item["summary"] = []
        item |= {"status": "in_progress", "content": []}
        self._items.append(item)
        self._open = len(self._items) - 1
        added = _added(self._open, {**item, "content": []})
        empty: dict[str, Any] = {"type": part, "text": ""}
        if part == _TEXT:
            empty |= {"annotations": [], "logprobs": []}
        item["content"] = [empty]
        return [
            added,
            {"type": "response.content_part.added", **self._place(), "part": dict(empty)},
        ]

    def _close(self, status: str) -> list[Told]:
        """End the text or reasoning item that grows, if there is one."""
        if self._open is None:
            return []
        item, place = self._items[self._open], self._place()
        part = item["content"][0]
        item["status"] = status
        if self._seal is not None and item["type"] == "reasoning":
            item["encrypted_content"] = self._seal(part["text"])
        done: Told = {"type": f"response.{part['type']}.done", **place, "text": part["text"]}
        if part["type"] == _TEXT:
            done["logprobs"] = part["logprobs"]
        told = [
            done,
            {"type": "response.content_part.done", **place, "part": dict(part)},
            _done(self._open, item),
        ]
        self._open = None
        return told

    def _place(self) -> Told:
        assert self._open is not None
        item_id = self._items[self._open]["id"]
        return {"item_id": item_id, "output_index": self._open, "content_index": 0}

    def _start_call(self, index: int, name: str, call_id: str | None) -> list[Told]:
        item = {
            "type": "function_call",
            "id": new_id("fc_"),
            "call_id": call_id or new_id("call_"),
            "name": name,
            "arguments": "",
            "status": "in_progress",
        }
        self._items.append(item)
        self._calls[index] = len(self._items) - 1
        return [_added(self._calls[index], item)]

    def _arguments(self, index: int, text: str) -> Told:
        at = self._calls[index]
        item = self._items[at]
        item["arguments"] += text
        place = {"item_id": item["id"], "output_index": at}
        return {"type": "response.function_call_arguments.delta", **place, "delta": text}

    def _end_call(self, index: int, complete: bool) -> list[Told]:
        at = self._calls[index]
        item = self._items[at]
        item["status"] = "completed" if complete else "incomplete"
        place = {"item_id": item["id"], "output_index": at}
        arguments = {"name": item["name"], "arguments": item["arguments"]}
        done = {"type": "response.function_call_arguments.done", **place, **arguments}
        return [done, _done(at, item)]


def _added(at: int, item: dict[str, Any]) -> Told:
    return {"type": "response.output_item.added", "output_index": at, "item": dict(item)}


def _done(at: int, item: dict[str, Any]) -> Told:
    return {"type": "response.output_item.done", "output_index": at, "item": dict(item)}
