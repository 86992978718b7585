"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's API."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gnomon.engine.serve import conversation
from gnomon.engine.serve.accounts import Usage
from gnomon.engine.serve.content_blocks import ContentBlocks
from gnomon.engine.serve.errors import ApiError
from gnomon.engine.serve.generation import Finished, Generation
from gnomon.engine.serve.ids import new_id
from gnomon.engine.serve.messages_input import (
    chat_choice,
    chat_messages,
    chat_tools,
    thinking_kwargs,
)
from gnomon.engine.serve.protocol.common import SamplingFields
from gnomon.engine.serve.protocol.messages import CountTokensRequest, MessagesRequest
from gnomon.engine.serve.served import Served
from gnomon.engine.serve.sse import EventStream, event, json_unless_gone
from gnomon.engine.serve.structure import messages_format, read_choice, structure


async def messages(served: Served, body: MessagesRequest, request: Request) -> Response:
    """Answer one request."""
    model = served.admit(body.model)
    choice = chat_choice(body.tool_choice)
    alone = body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use
    fields = SamplingFields(
        temperature=body.temperature, top_p=body.top_p, top_k=body.top_k, stop=body.stop_sequences
    )
    with _spelled_as_sent():
        tools = chat_tools(body.tools)
        offered = conversation.offered_tools(tools, choice, flat=True)
        form = messages_format(body.output_config, body.output_format)
        wanted = structure(
            tools, read_choice(choice, tools), False if alone else None, form, flat=True
        )
        kwargs = {**thinking_kwargs(body.thinking), **(body.chat_template_kwargs or {})}
        cap = ("max_tokens", body.max_tokens)
        job = await served.chat(
            new_id("msg_"), fields, chat_messages(body), offered, kwargs, cap, wanted
        )
    answer = _Answer(job, model)
    if body.stream:
        return EventStream(answer.stream(served), _failure)
    return await json_unless_gone(request, answer.whole(served))


async def count_tokens(served: Served, body: CountTokensRequest) -> Response:
    """How many tokens the prompt of a conversation has."""
    served.admit(body.model)
    messages_format(body.output_config, body.output_format)  # refuses what /v1/messages refuses
    with _spelled_as_sent():
        tools = conversation.offered_tools(
            chat_tools(body.tools), chat_choice(body.tool_choice), flat=True
        )
        kwargs = {**thinking_kwargs(body.thinking), **(body.chat_template_kwargs or {})}
        async with served.before(served.deadline()):
            prompt = await served.prompt(chat_messages(body), tools, kwargs)
    return JSONResponse({"input_tokens": len(prompt.ids)})


@contextlib.contextmanager
def _spelled_as_sent() -> Iterator[None]:
    """Errors name a tool's schema as this API spells it."""
    try:
        yield
    except ApiError as error:
        if error.param is not None and error.param.startswith("tools["):
            error.message = error.message.replace("].parameters", "].input_schema")
            error.param = error.param.replace("].parameters", "].input_schema")
        raise


@dataclass
class _Answer:
    """One message, as it grows."""

    job: Generation
    model: str
    blocks: ContentBlocks = field(default_factory=ContentBlocks)

    async def whole(self, served: Served) -> dict[str, Any]:
        """Run to the end and return the message."""
        async with contextlib.aclosing(served.run(self.job)) as items:
            async for item in items:
                if isinstance(item, Finished):
                    return {
                        **self._message(_usage(item.usage)),
                        **self._end(item),
                        "content": self.blocks.done(),
                    }
                self.blocks.take(item)
        raise AssertionError("a generation ends with Finished")

    async def stream(self, served: Served) -> AsyncGenerator[bytes, None]:
        """Run, yielding the events of the Messages API in their order."""
        known = _usage(Usage(len(self.job.prompt_ids), 0, 0, 0))  # the cache is not asked yet
        head = event({"type": "message_start", "message": self._message(known)})
        async with contextlib.aclosing(served.run(self.job)) as items:
            async for item in items:
                if isinstance(item, Finished):
                    last = [
                        *self.blocks.close(),
                        {
                            "type": "message_delta",
                            "delta": self._end(item),
                            "usage": _usage(item.usage),
                        },
                        {"type": "message_stop"},
                    ]
                    yield head + b"".join(map(event, last))
                    return
                told = head + b"".join(map(event, self.blocks.take(item)))
                if told:
                    yield told
                head = b""

    def _message(self, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self.job.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _end(self, finished: Finished) -> dict[str, Any]:
        if finished.truncated:
            reason = "max_tokens"
        elif self.blocks.called:
            reason = "tool_use"
        else:
            reason = "stop_sequence" if finished.stop is not None else "end_turn"
        sequence = finished.stop if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": sequence}


def _usage(usage: Usage) -> dict[str, Any]:
    """Usage as Anthropic counts it: cached tokens are no input tokens."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }


def _failure(error: ApiError) -> list[bytes]:
    """How a stream ends when it fails on the way."""
    return [event({"type": "error", **error.body()})]
