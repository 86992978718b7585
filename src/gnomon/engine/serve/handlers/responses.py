"""``POST /v1/responses``."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gnomon.engine.serve import conversation
from gnomon.engine.serve.errors import ApiError, unsupported
from gnomon.engine.serve.gate import key_digest
from gnomon.engine.serve.generation import Finished, Generation
from gnomon.engine.serve.ids import new_id
from gnomon.engine.serve.output_items import OutputItems
from gnomon.engine.serve.protocol.responses import ResponsesRequest
from gnomon.engine.serve.responses_input import chat_tools, messages_of
from gnomon.engine.serve.served import Events, Served
from gnomon.engine.serve.sse import EventStream, event, json_unless_gone
from gnomon.engine.serve.store import Item, Stored
from gnomon.engine.serve.structure import read_choice, responses_format, structure


async def responses(served: Served, body: ResponsesRequest, request: Request) -> Response:
    """Answer one request."""
    model = served.admit(body.model)
    summary = body.reasoning.summary if body.reasoning else None
    if summary not in (None, "auto"):
        raise unsupported(
            "reasoning.summary",
            f"reasoning.summary {summary!r} is not supported; reasoning is returned in full.",
        )
    function_tools = chat_tools(body.tools)
    tools = conversation.offered_tools(function_tools, body.tool_choice, flat=True)
    effort = body.reasoning.effort if body.reasoning else None
    owner = key_digest(request.headers)
    earlier = _earlier(served, body, owner)
    job = await served.chat(
        new_id("resp_"),
        body,
        messages_of(body.instructions, body.input, earlier),
        tools,
        conversation.template_kwargs(body.chat_template_kwargs, effort, "reasoning.effort"),
        ("max_output_tokens", body.max_output_tokens),
        structure(
            function_tools,
            read_choice(body.tool_choice, function_tools),
            body.parallel_tool_calls,
            responses_format(body.text),
            flat=True,
        ),
    )
    job = replace(job, cancel=asyncio.Event())
    answer = _Answer(job, model, body, owner, earlier, stores=served.store.keeps)
    if body.stream:
        return EventStream(answer.stream(served), answer.failure)
    return await json_unless_gone(request, answer.whole(served))


def _earlier(served: Served, body: ResponsesRequest, owner: str) -> Sequence[Item]:
    """Items of the conversation that the request continues."""
    if body.previous_response_id is None:
        return ()
    return served.store.get(body.previous_response_id, owner, "previous_response_id").items


class _Answer:
    """One response object, as it grows, and the events that tell of it."""

    def __init__(
        self,
        job: Generation,
        model: str,
        body: ResponsesRequest,
        owner: str,
        earlier: Sequence[Item],
        *,
        stores: bool,
    ) -> None:
        self.owner = owner
        self._earlier = earlier
        self._stores = stores and body.store is not False
        self._job = job
        self._model = model
        self._body = body
        self._created = int(time.time())
        self._sequence = 0
        self._items = OutputItems()

    async def whole(self, served: Served) -> dict[str, Any]:
        """Run to the end and return the response object."""
        async with self._running(served) as items:
            async for item in items:
                if isinstance(item, Finished):
                    self._items.finish(truncated=item.truncated)
                    return self._kept(served, self._finished(item))
                self._items.take(item)
        raise AssertionError("a generation ends with Finished")

    async def stream(self, served: Served) -> AsyncGenerator[bytes, None]:
        """Run, yielding the events of the Responses API in their order."""
        head = self._events(
            {"type": "response.created", "response": self._response("in_progress")},
            {"type": "response.in_progress", "response": self._response("in_progress")},
        )
        async with self._running(served) as items:
            async for item in items:
                if isinstance(item, Finished):
                    told = self._events(*self._items.finish(truncated=item.truncated))
                    # Truncated or not: the openai helper's get_final_response accepts no other
                    # last event (nor does vLLM send one); the response's status tells them apart.
                    response = self._kept(served, self._finished(item))
                    whole = {"type": "response.completed", "response": response}
                    last = self._events(whole)
                    yield head + told + last
                    return
                told = self._events(*self._items.take(item))
                if head + told:
                    yield head + told
                head = b""

    def snapshot(self) -> Item:
        """The response object so far."""
        return self._response("in_progress")

    def cancel(self) -> None:
        """End it; it is answered with what there is."""
        assert self._job.cancel is not None
        self._job.cancel.set()

    @contextlib.asynccontextmanager
    async def _running(self, served: Served) -> AsyncGenerator[Events, None]:
        """The generation, which can be found and cancelled by its id meanwhile."""
        served.store.running[self._job.id] = self
        try:
            async with contextlib.aclosing(served.run(self._job)) as items:
                yield items
        finally:
            del served.store.running[self._job.id]

    def _kept(self, served: Served, response: Item) -> Item:
        """The finished response, stored if it is to be."""
        if self._stores:
            given = self._body.input
            items = [{"role": "user", "content": given}] if isinstance(given, str) else given
            added = [*items, *response["output"]]
            nbytes = len(msgspec.json.encode((items, response)))
            served.store.put(Stored(self.owner, response, (*self._earlier, *added), nbytes))
        return response

    def failure(self, error: ApiError) -> list[bytes]:
        """How the stream ends when it fails on the way."""
        problem = {"code": "server_error", "message": error.message}
        response = {**self._response("failed"), "error": problem}
        told = {"code": error.code, "message": error.message, "param": error.param}
        return [
            self._events({"type": "response.failed", "response": response}),
            self._events({"type": "error", **told, **error.body()}),
        ]

    def _events(self, *events: dict[str, Any]) -> bytes:
        """Number the events and write them."""
        written = b""
        for told in events:
            written += event({**told, "sequence_number": self._sequence})
            self._sequence += 1
        return written

    def _finished(self, finished: Finished) -> dict[str, Any]:
        status = "incomplete" if finished.truncated else "completed"
        status = "cancelled" if finished.cancelled else status
        usage = finished.usage
        why = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._response(status),
            "incomplete_details": why,
            "usage": {
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached},
                "output_tokens": usage.completion,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning},
                "total_tokens": usage.prompt + usage.completion,
            },
        }

    def _response(self, status: str) -> dict[str, Any]:
        body, sampling = self._body, self._job.sampling
        effort = body.reasoning.effort if body.reasoning else None
        return {
            "id": self._job.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self._model,
            "output": self._items.done(),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": effort, "summary": None},
            "store": self._stores,
            "temperature": sampling.temperature,
            "text": {"format": {"type": "text"}, **(body.text or {})},
            "tool_choice": body.tool_choice or "auto",
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            "metadata": body.metadata or {},
        }
