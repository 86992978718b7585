"""``POST /v1/chat/completions``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gnomon.engine.serve import conversation
from gnomon.engine.serve.accounts import Token, Usage
from gnomon.engine.serve.errors import bad_request
from gnomon.engine.serve.generation import Finished, Generation
from gnomon.engine.serve.ids import new_id
from gnomon.engine.serve.parsers.base import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)
from gnomon.engine.serve.protocol.chat import ChatRequest
from gnomon.engine.serve.protocol.common import StreamOptions
from gnomon.engine.serve.reasoning_format import formatted
from gnomon.engine.serve.reply import Call, Reply, collect_all
from gnomon.engine.serve.scores import ScoreWriter
from gnomon.engine.serve.served import Events, Served
from gnomon.engine.serve.side_by_side import side_by_side, total
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
    answer = _Answer(served, body, model, job)
    if body.stream:
        return EventStream(answer.stream(), error_lines)
    return await json_unless_gone(request, answer.whole())


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


class _Answer:
    """One answer: one or more choices, told whole or as they grow."""

    def __init__(self, served: Served, body: ChatRequest, model: str, job: Generation) -> None:
        tell = replace(
            job.tell,
            tokens=job.tell.tokens or bool(body.return_token_ids),
            usage=wants_usage_so_far(body.stream_options),
        )
        jobs = served.choices(replace(job, tell=tell), body.count)
        self._body = body
        self._prompt_ids = job.prompt_ids
        self._runs = [_events(served, one) for one in jobs]
        self._writer = ScoreWriter(served.tokenizer, bool(body.return_tokens_as_token_ids))
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self._base = {"id": job.id, "object": kind, "created": int(time.time()), "model": model}

    async def whole(self) -> dict[str, Any]:
        """Run to the end and return the answer."""
        replies = await collect_all(self._runs)
        choices = [
            {
                "index": at,
                "message": _message(reply),
                "finish_reason": reply.finish_reason,
                **self._tokens(reply.tokens, always=True),
            }
            for at, reply in enumerate(replies)
        ]
        usage = total([reply.usage for reply in replies], len(replies))
        told = {**self._base, "choices": choices}
        return {**told, "usage": usage_json(usage), **self._prompt()}

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Run, yielding packets.

        Tokens are told with what comes next of their choice, at the latest with its last packet.
        """
        replies = [Reply() for _ in self._runs]
        heads = [{"role": "assistant", "content": ""} for _ in replies]
        prompt = self._prompt()
        async with contextlib.aclosing(side_by_side(self._runs)) as told:
            async for at, item in told:
                reply, packets = replies[at], []
                if isinstance(item, list) and item and isinstance(item[0], Usage):
                    reply.usage = item[0]
                if heads[at]:
                    packets.append(self._packet(replies, at, heads[at], None, prompt))
                    heads[at], prompt = {}, {}
                if isinstance(item, Finished):
                    reply.end(item)
                    packets.append(self._packet(replies, at, {}, reply.finish_reason))
                else:
                    for event in item:
                        reply.take([event])
                        delta = _delta(event, reply)
                        if delta:
                            packets.append(self._packet(replies, at, delta))
                if packets:
                    yield b"".join(packets)
        options = self._body.stream_options
        if options and options.include_usage:
            usage = total([reply.usage for reply in replies], len(replies))
            yield data({**self._base, "choices": [], "usage": usage_json(usage)})
        yield DONE

    def _packet(
        self,
        replies: list[Reply],
        at: int,
        delta: dict[str, Any],
        finish_reason: str | None = None,
        more: dict[str, Any] | None = None,
    ) -> bytes:
        reply = replies[at]
        tokens = [] if "role" in delta else reply.tokens
        choice = {
            "index": at,
            "delta": delta,
            "finish_reason": finish_reason,
            **self._tokens(tokens),
        }
        tokens.clear()
        told = {**self._base, "choices": [choice]}
        if wants_usage_so_far(self._body.stream_options):
            usage = total([reply.usage for reply in replies], len(replies))
            told["usage"] = usage_json(usage)
        return data({**told, **(more or {})})

    def _tokens(self, tokens: Sequence[Token], *, always: bool = False) -> dict[str, Any]:
        """What a choice says about its tokens."""
        told: dict[str, Any] = {"logprobs": None}
        if self._body.logprobs and (tokens or always):
            told["logprobs"] = {"content": self._writer.content(tokens), "refusal": None}
        if self._body.return_token_ids:
            told["token_ids"] = [token.id for token in tokens]
        return told

    def _prompt(self) -> dict[str, Any]:
        return {"prompt_token_ids": list(self._prompt_ids)} if self._body.return_token_ids else {}


def wants_usage_so_far(options: StreamOptions | None) -> bool:
    """Whether every packet of a stream has the usage so far."""
    return options is not None and bool(options.continuous_usage_stats)


def _events(served: Served, job: Generation) -> Events:
    return formatted(served.run(job), served.options.reasoning_format, served.reasoning)


def _message(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [_call_json(call) for call in reply.calls]
    elif not reply.reasoning:
        message["content"] = reply.content  # an empty answer is "", not absent
    return message


def _call_json(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


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
