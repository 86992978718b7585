"""``POST /v1/completions``: raw prompts, one answer each, run side by side."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gnomon.engine.serve.errors import ApiError, bad_request
from gnomon.engine.serve.generation import Finished, Generation, Usage
from gnomon.engine.serve.handlers.chat import usage_json
from gnomon.engine.serve.ids import new_id
from gnomon.engine.serve.parsers.base import ContentDelta, Event, OutputParser
from gnomon.engine.serve.prompt import require_short
from gnomon.engine.serve.protocol.completions import CompletionRequest
from gnomon.engine.serve.reply import collect
from gnomon.engine.serve.served import Served
from gnomon.engine.serve.sse import DONE, EventStream, data, error_lines, json_unless_gone
from gnomon.engine.serve.structure import Structure, chat_format

_MAX_PROMPTS = 256


async def completions(served: Served, body: CompletionRequest, request: Request) -> Response:
    """Answer one request."""
    model = served.admit(body.model)
    deadline = served.deadline()
    async with served.before(deadline):
        prompts = await served.workers.run(_prompts, served, body.prompt)
    base = {
        "id": new_id("cmpl-"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
    }
    cap = ("max_tokens", body.max_tokens)
    jobs = [
        served.generation(f"{base['id']}-{at}", body, ids, OutputParser(None, None), cap, deadline)
        for at, ids in enumerate(prompts)
    ]
    wanted = Structure(None, chat_format(body.response_format))
    async with served.before(deadline):
        ruled = await served.ruled(jobs[0], body, wanted)
    jobs = [replace(job, grammar=ruled.grammar) for job in jobs]
    if body.stream:
        return EventStream(_stream(served, jobs, base, body), error_lines)
    return await json_unless_gone(request, _whole(served, jobs, base))


def _prompts(served: Served, prompt: Any) -> list[list[int]]:
    """Token ids of every prompt."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        prompt = [prompt]
    if not prompt or not all(prompt):
        raise bad_request("'prompt' is empty; send text or token ids.", "prompt")
    if len(prompt) > _MAX_PROMPTS:
        raise bad_request(f"At most {_MAX_PROMPTS} prompts may be sent at once.", "prompt")
    return [_ids(served, one) for one in prompt]


def _ids(served: Served, prompt: str | list[int]) -> list[int]:
    tokenizer = served.tokenizer
    if isinstance(prompt, str):
        require_short(tokenizer, len(prompt), served.engine.facts.max_model_len, "prompt")
        return tokenizer.encode(prompt)
    if max(prompt) >= tokenizer.size:
        raise bad_request(
            f"Token id {max(prompt)} does not exist; ids are below {tokenizer.size}.", "prompt"
        )
    return prompt


async def _whole(
    served: Served, jobs: Sequence[Generation], base: dict[str, Any]
) -> dict[str, Any]:
    async with _all_or_nothing([asyncio.ensure_future(collect(served.run(j))) for j in jobs]) as t:
        replies = await asyncio.gather(*t)
    choices = [
        {"index": at, "text": r.content, "finish_reason": r.finish_reason, "logprobs": None}
        for at, r in enumerate(replies)
    ]
    usage = _total([reply.usage for reply in replies])
    return {**base, "choices": choices, "usage": usage_json(usage)}


async def _stream(
    served: Served, jobs: Sequence[Generation], base: dict[str, Any], body: CompletionRequest
) -> AsyncGenerator[bytes, None]:
    def chunk(index: int, text: str, finish_reason: str | None = None) -> bytes:
        choice = {"index": index, "text": text, "finish_reason": finish_reason, "logprobs": None}
        return data({**base, "choices": [choice]})

    arrivals: asyncio.Queue[tuple[int, list[Event] | Finished | ApiError]] = asyncio.Queue()
    usages: list[Usage] = []
    pumps = [asyncio.ensure_future(_pump(served, job, at, arrivals)) for at, job in enumerate(jobs)]
    async with _all_or_nothing(pumps):
        while len(usages) < len(jobs):
            at, item = await arrivals.get()
            if isinstance(item, ApiError):
                raise item
            if isinstance(item, Finished):
                usages.append(item.usage)
                yield chunk(at, "", "length" if item.truncated else "stop")
            else:
                yield chunk(at, "".join(e.text for e in item if isinstance(e, ContentDelta)))
    if body.stream_options and body.stream_options.include_usage:
        yield data({**base, "choices": [], "usage": usage_json(_total(usages))})
    yield DONE


async def _pump(
    served: Served,
    job: Generation,
    at: int,
    arrivals: asyncio.Queue[tuple[int, list[Event] | Finished | ApiError]],
) -> None:
    try:
        async with contextlib.aclosing(served.run(job)) as items:
            async for item in items:
                arrivals.put_nowait((at, item))
    except ApiError as error:
        arrivals.put_nowait((at, error))


@contextlib.asynccontextmanager
async def _all_or_nothing(tasks: Sequence[asyncio.Future[Any]]) -> AsyncGenerator[Any, None]:
    """On the way out, whatever still runs is cancelled and waited for."""
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _total(usages: Sequence[Usage]) -> Usage:
    return Usage(
        prompt=sum(u.prompt for u in usages),
        cached=sum(u.cached for u in usages),
        completion=sum(u.completion for u in usages),
        reasoning=sum(u.reasoning for u in usages),
    )
