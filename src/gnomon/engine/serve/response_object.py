"""One response of the Responses API as it grows, and the events that tell of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gnomon.engine.serve.errors import ApiError
from gnomon.engine.serve.generation import Finished, Generation
from gnomon.engine.serve.ids import new_id
from gnomon.engine.serve.output_items import OutputItems
from gnomon.engine.serve.parsers.base import Event
from gnomon.engine.serve.protocol.responses import ResponsesRequest
from gnomon.engine.serve.scores import ScoreWriter
from gnomon.engine.serve.sse import event

Item = dict[str, Any]
Numbered = list[bytes]
"""Events as they are sent, one after the other."""

_PREFIX = {
    "message": "msg_", "reasoning": "rs_", "function_call": "fc_", "function_call_output": "fco_",
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What a response is made for.

    Attributes:
        model: the name to report.
        owner: digest of the API key; others do not see the response.
        earlier: items of the conversation that it continues.
        dropped: items of the conversation that were left out of the prompt.
        stores: it is kept.
        seal: makes the opaque form of reasoning; None if that is not wanted.
        writer: writes log probabilities; None if they are not wanted.
    """

    model: str
    owner: str
    earlier: Sequence[Item]
    dropped: int
    stores: bool
    seal: Callable[[str], str] | None
    writer: ScoreWriter | None = None


class ResponseObject:
    """A response from its beginning to its end.

    Attributes:
        status: queued, in_progress, completed, incomplete, cancelled or failed.
        usage: as the API reports it; None before the end.
    """

    def __init__(self, job: Generation, body: ResponsesRequest, asked: Asked) -> None:
        self.asked = asked
        self.id = job.id
        self.status = "queued" if body.background else "in_progress"
        self.usage: dict[str, Any] | None = None
        self._error: dict[str, str] | None = None
        self._job = job
        self._body = body
        self._created = int(time.time())
        self._sequence = 0
        self._items = OutputItems(asked.seal, asked.writer)

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.status not in ("queued", "in_progress")

    @cached_property
    def input_items(self) -> list[Item]:
        """Items the response answers, as the API lists them: each with an id and its parts."""
        given = self._body.input
        if isinstance(given, str):
            given = [{"role": "user", "content": given}]
        return [*self.asked.earlier, *map(_listed, given)]

    def opening(self) -> Numbered:
        """The events before anything is generated."""
        second = "response.queued" if self.status == "queued" else "response.in_progress"
        return self._tell(
            {"type": "response.created", "response": self.snapshot()},
            {"type": second, "response": self.snapshot()},
        )

    def take(self, item: list[Event] | Finished) -> Numbered:
        """Take what the generation gives, to its end."""
        told: list[dict[str, Any]] = []
        if self.status == "queued":
            self.status = "in_progress"
            told.append({"type": "response.in_progress", "response": self.snapshot()})
        if not isinstance(item, Finished):
            return self._tell(*told, *self._items.take(item))
        told += self._items.finish(truncated=item.truncated)
        self.status = "incomplete" if item.truncated else "completed"
        self.status = "cancelled" if item.cancelled else self.status
        self.usage = {
            "input_tokens": item.usage.prompt,
            "input_tokens_details": {"cached_tokens": item.usage.cached},
            "output_tokens": item.usage.completion,
            "output_tokens_details": {"reasoning_tokens": item.usage.reasoning},
            "total_tokens": item.usage.prompt + item.usage.completion,
        }
        # Truncated or not: the openai helper's get_final_response accepts no other last event (nor
        # does vLLM send one); the response's status tells them apart.
        return self._tell(*told, {"type": "response.completed", "response": self.snapshot()})

    def fail(self, error: ApiError) -> Numbered:
        """End it with an error."""
        self.status = "failed"
        self._error = {"code": "server_error", "message": error.message}
        told = {"code": error.code, "message": error.message, "param": error.param}
        return self._tell(
            {"type": "response.failed", "response": self.snapshot()},
            {"type": "error", **told, **error.body()},
        )

    def cancel(self) -> None:
        """End it early; it is answered with what there is."""
        assert self._job.cancel is not None
        self._job.cancel.set()

    def snapshot(self) -> Item:
        """The response object now."""
        body, sampling = self._body, self._job.sampling
        reasoning = body.reasoning
        incomplete = self.status == "incomplete"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": self.status,
            "background": bool(body.background),
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if incomplete else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "model": self.asked.model,
            "output": self._items.done(),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
            "store": self.asked.stores,
            "temperature": sampling.temperature,
            "text": {"format": {"type": "text"}, **(body.text or {})},
            "tool_choice": body.tool_choice or "auto",
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": body.truncation or "disabled",
            "dropped_input_items": self.asked.dropped,
            "usage": self.usage,
            "metadata": body.metadata or {},
        }

    def _tell(self, *events: dict[str, Any]) -> Numbered:
        """Number the events and write them."""
        numbered = [event({**e, "sequence_number": self._sequence + n})
                    for n, e in enumerate(events)]  # fmt: skip
        self._sequence += len(events)
        return numbered


def _listed(item: Item) -> Item:
    kind = item.get("type", "message")
    found = {"type": kind, **item, "id": item.get("id") or new_id(_PREFIX[kind])}
    if kind == "message":
        found.setdefault("status", "completed")
        if isinstance(item["content"], str):
            part: Item = {"type": "input_text", "text": item["content"]}
            if item["role"] == "assistant":
                part = {"type": "output_text", "text": item["content"], "annotations": []}
            found["content"] = [part]
    return found
