"""``POST /v1/completions``: raw prompts, one or more answers each, run side by side."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gnomon.engine.serve.completion_choice import CompletionChoice, EchoedPrompt
from gnomon.engine.serve.errors import bad_request
from gnomon.engine.serve.generation import Finished
from gnomon.engine.serve.handlers.chat import usage_json, wants_usage_so_far
from gnomon.engine.serve.ids import new_id
from gnomon.engine.serve.parsers.base import OutputParser
from gnomon.engine.serve.prompt import require_short
from gnomon.engine.serve.protocol.completions import CompletionRequest
from gnomon.engine.serve.reply import Reply, collect_all
from gnomon.engine.serve.scores import ScoreWriter
from gnomon.engine.serve.served import Events, Served
from gnomon.engine.serve.side_by_side import side_by_side, total
from gnomon.engine.serve.sse import DONE, EventStream, data, error_lines, json_unless_gone
from gnomon.engine.serve.structure import Structure, chat_format
from gnomon.engine.serve.tokenizer import Tokenizer

_MAX_PROMPTS = 256


async def completions(served: Served, body: CompletionRequest, request: Request) -> Response:
    """Answer one request."""
    model = served.admit(body.model)
    deadline = served.deadline()
    async with served.before(deadline):
        prompts = await served.workers.run(_prompts, served, body.prompt)
    base: dict[str, Any] = {
        "id": new_id("cmpl-"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
    }
    cap = ("max_tokens", body.max_tokens)
    _require_few(served, len(prompts), body.count)
    first = served.generation(base["id"], body, prompts[0], OutputParser(None, None), cap, deadline)
    wanted = Structure(None, chat_format(body.response_format))
    async with served.before(deadline):
        ruled = await served.ruled(first, body, wanted)
    tell = replace(
        first.tell,
        tokens=first.tell.tokens or bool(body.return_token_ids),
        usage=wants_usage_so_far(body.stream_options),
    )
    jobs = []
    for at, ids in enumerate(prompts):
        name = f"{base['id']}-{at}"
        job = served.generation(name, body, ids, OutputParser(None, None), cap, deadline)
        jobs += served.choices(replace(job, grammar=ruled.grammar, tell=tell), body.count)
    async with served.before(deadline):
        choices = await served.workers.run(_choices, served.tokenizer, body, prompts)
    runs = [served.run(job) for job in jobs]
    if body.stream:
        return EventStream(_stream(runs, choices, base, body), error_lines)
    return await json_unless_gone(request, _whole(runs, choices, base, body))


def _require_few(served: Served, prompts: int, count: int) -> None:
    """Check that the engine may have that many generations open.

    Raises:
        ApiError: there are too many.
    """
    most = max(_MAX_PROMPTS, served.options.max_open_requests)
    if prompts * count > most:
        raise bad_request(
            f"{prompts} prompts with {count} choices each are {prompts * count} generations; at "
            f"most {most} are made of one request.",
            "n",
        )


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


def _choices(
    tokenizer: Tokenizer, body: CompletionRequest, prompts: Sequence[Sequence[int]]
) -> list[CompletionChoice]:
    """What is told of the choices, those of one prompt in a row."""
    writer = ScoreWriter(tokenizer, bool(body.return_tokens_as_token_ids))
    found: list[CompletionChoice] = []
    for ids, text in zip(prompts, _texts(body.prompt), strict=True):
        echo = EchoedPrompt.of(tokenizer, ids, text) if body.echo else None
        found += [
            CompletionChoice(len(found) + at, ids, echo, body, writer) for at in range(body.count)
        ]
    return found


def _texts(prompt: Any) -> list[str | None]:
    """Every prompt as it was given; None for token ids."""
    prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    return [one if isinstance(one, str) else None for one in prompts]


async def _whole(
    runs: Sequence[Events],
    choices: Sequence[CompletionChoice],
    base: dict[str, Any],
    body: CompletionRequest,
) -> dict[str, Any]:
    replies = await collect_all(runs)
    told = []
    for at, (choice, reply) in enumerate(zip(choices, replies, strict=True)):
        scores = replies[at - at % body.count].prompt  # the first choice of a prompt scores it
        told.append(choice.whole(reply, scores))
    usage = total([reply.usage for reply in replies], body.count)
    return {**base, "choices": told, "usage": usage_json(usage)}


async def _stream(
    runs: Sequence[Events],
    choices: Sequence[CompletionChoice],
    base: dict[str, Any],
    body: CompletionRequest,
) -> AsyncGenerator[bytes, None]:
    replies = [Reply() for _ in runs]
    begun: set[int] = set()
    so_far = wants_usage_so_far(body.stream_options)

    def packet(choice: dict[str, Any]) -> bytes:
        told = {**base, "choices": [choice]}
        if so_far:
            told["usage"] = usage_json(total([reply.usage for reply in replies], body.count))
        return data(told)

    async with contextlib.aclosing(side_by_side(runs)) as items:
        async for at, item in items:
            reply, choice, packets = replies[at], choices[at], []
            if isinstance(item, Finished):
                reply.end(item)
            else:
                reply.content = ""
                reply.take(item)
            if at not in begun:
                begun.add(at)
                head = choice.head(replies[at - at % body.count].prompt)
                packets += [packet(head)] if head is not None else []
            if isinstance(item, Finished):
                packets.append(packet(choice.part("", reply.tokens, reply.finish_reason)))
            elif reply.content:
                packets.append(packet(choice.part(reply.content, reply.tokens)))
                reply.tokens.clear()
            if packets:
                yield b"".join(packets)
    if body.stream_options and body.stream_options.include_usage:
        usage = total([reply.usage for reply in replies], body.count)
        yield data({**base, "choices": [], "usage": usage_json(usage)})
    yield DONE
