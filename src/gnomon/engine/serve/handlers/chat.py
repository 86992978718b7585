"""``POST /v1/chat/completions``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gnomon.engine.serve import conversation
from gnomon.engine.serve.errors import bad_request
from gnomon.engine.serve.generation import Finished, Generation, Usage
from gnomon.engine.serve.ids import new_id
from gnomon.engine.serve.parsers.base import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)
from gnomon.engine.serve.protocol.chat import ChatRequest
from gnomon.engine.serve.reasoning_format import formatted
from gnomon.engine.serve.reply import Call, Reply, collect
from gnomon.engine.serve.served import Events, Served
from gnomon.engine.serve.sse import DONE, EventStream, data, error_lines, json_unless_gone
from gnomon.engine.serve.structure import chat_format, read_choice, structure


async def chat_completions(served: Served, body: ChatRequest, request: Request) -> Response:
    """Answer one request."""
    model = served.admit(body.model)
    tools = conversation.offered_tools(body.tools, body.tool_choice)
    wanted = structure(
        body.tools,
        read_choice(body.tool_choice, body.tools),
        body.parallel_tool_calls,
        chat_format(body.response_format),
    )
    job = await served.chat(
        new_id("chatcmpl-"),
        body,
        body.messages,
        tools,
        conversation.template_kwargs(
            body.chat_template_kwargs, body.reasoning_effort, "reasoning_effort"
        ),
        output_cap(body),
        wanted,
    )
    if body.stream:
        return EventStream(_stream(served, job, model, body), error_lines)
    return await json_unless_gone(request, _whole(served, job, model))


def output_cap(body: ChatRequest) -> tuple[str, int | None]:
    """Name and value of the field that caps the output.

    Raises:
        ApiError: both names are used, with different values.
    """
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise bad_request(
            f"max_tokens is {old} but max_completion_tokens, its newer name, is {new}; send one.",
            "max_tokens",
        )
    return ("max_tokens", old) if old is not None else ("max_completion_tokens", new)


def usage_json(usage: Usage) -> dict[str, Any]:
    """Usage as chat and text completions report it."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _events(served: Served, job: Generation) -> Events:
    return formatted(served.run(job), served.options.reasoning_format, served.reasoning)


async def _whole(served: Served, job: Generation, model: str) -> dict[str, Any]:
    reply = await collect(_events(served, job))
    message: dict[str, Any] = {"role": "assistant", "content": reply.content or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [_call_json(call) for call in reply.calls]
    elif not reply.reasoning:
        message["content"] = reply.content  # an empty answer is "", not absent
    return {
        "id": job.id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": reply.finish_reason,
                "logprobs": None,
            }
        ],
        "usage": usage_json(reply.usage),
    }


def _call_json(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


async def _stream(
    served: Served, job: Generation, model: str, body: ChatRequest
) -> AsyncGenerator[bytes, None]:
    base = {
        "id": job.id,
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
    }

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return data({**base, "choices": [choice]})

    reply = Reply()
    head = chunk({"role": "assistant", "content": ""})
    async with contextlib.aclosing(_events(served, job)) as items:
        async for item in items:
            if isinstance(item, Finished):
                reply.truncated = item.truncated
                yield head + chunk({}, reply.finish_reason)
                include_usage = body.stream_options and body.stream_options.include_usage
                if include_usage:
                    yield data({**base, "choices": [], "usage": usage_json(item.usage)})
                yield DONE
                return
            reply.take(item)
            deltas = (_delta(event, reply) for event in item)
            yield head + b"".join(chunk(delta) for delta in deltas if delta)
            head = b""


def _delta(event: Event, reply: Reply) -> dict[str, Any]:
    """The delta of one event; only what the event brings is in it."""
    match event:
        case ContentDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case ToolCallStart(index, name):
            call = {"index": index, "id": reply.calls[index].id, "type": "function"}
            return {"tool_calls": [{**call, "function": {"name": name, "arguments": ""}}]}
        case ToolArgumentsDelta(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case _:
            return {}
