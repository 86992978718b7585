"""``POST /v1/responses``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gnomon.engine.serve import conversation
from gnomon.engine.serve.background import EventLog, reading_failed, run_in_background
from gnomon.engine.serve.errors import bad_request, unsupported
from gnomon.engine.serve.gate import current_ticket, key_digest
from gnomon.engine.serve.generation import Generation
from gnomon.engine.serve.ids import new_id
from gnomon.engine.serve.protocol.responses import LOGPROBS, ResponsesRequest
from gnomon.engine.serve.response_object import Asked, ResponseObject
from gnomon.engine.serve.responses_input import chat_tools, messages_of
from gnomon.engine.serve.responses_prompt import Conversation, fitting_prompt
from gnomon.engine.serve.scores import ScoreWriter
from gnomon.engine.serve.served import Events, Served
from gnomon.engine.serve.sse import EventStream, json_unless_gone
from gnomon.engine.serve.store import Item, Running, Stored
from gnomon.engine.serve.structure import read_choice, responses_format, structure

_SEALED = "reasoning.encrypted_content"
_SUMMARIES = ("concise", "detailed")


async def responses(served: Served, body: ResponsesRequest, request: Request) -> Response:
    """Answer one request."""
    model = served.admit(body.model)
    _require_served(body, keeps=served.store.keeps)
    owner = key_digest(request.headers)
    earlier = _earlier(served, body, owner)
    job, dropped = await _prepare(served, body, earlier)
    asked = Asked(
        model=model,
        owner=owner,
        earlier=earlier,
        dropped=dropped,
        stores=served.store.keeps and body.store is not False,
        seal=served.seal.close if _SEALED in (body.include or ()) else None,
        writer=ScoreWriter(served.tokenizer) if body.scores.output is not None else None,
    )
    job = replace(job, cancel=asyncio.Event())
    response = ResponseObject(job, body, asked)
    answer = _Answer(served, job, response)
    if body.background:
        events = answer.start()
        if body.stream:
            return EventStream(events.read(-1), reading_failed)
        return JSONResponse(response.snapshot())
    if body.stream:
        return EventStream(answer.stream(), response.fail)
    return await json_unless_gone(request, answer.whole())


def _require_served(body: ResponsesRequest, *, keeps: bool) -> None:
    summary = body.reasoning.summary if body.reasoning else None
    if summary in _SUMMARIES:
        raise unsupported(
            "reasoning.summary",
            f"reasoning.summary {summary!r} is not supported: reasoning is returned in full, and "
            "nothing sums it up; use 'auto'.",
        )
    if summary not in (None, "auto"):
        raise bad_request(
            f"reasoning.summary is {summary!r}; it must be 'auto' or null.", "reasoning.summary"
        )
    for at, name in enumerate(body.include or ()):
        if name not in (_SEALED, LOGPROBS):
            raise unsupported(
                f"include[{at}]",
                f"include[{at}] {name!r} is not supported by this server; {_SEALED!r} and "
                f"{LOGPROBS!r} are.",
            )
    if body.background and not (keeps and body.store is not False):
        why = "'store' is false" if keeps else "this server keeps none (--max-stored-responses 0)"
        raise unsupported("background", f"background needs a response that is stored, but {why}.")


def _earlier(served: Served, body: ResponsesRequest, owner: str) -> Sequence[Item]:
    """Items of the conversation that the request continues."""
    if body.previous_response_id is None:
        return ()
    return served.store.get(body.previous_response_id, owner, "previous_response_id").items


async def _prepare(
    served: Served, body: ResponsesRequest, earlier: Sequence[Item]
) -> tuple[Generation, int]:
    """The generation, and how many items its prompt leaves out."""
    functions = chat_tools(body.tools)
    tools = conversation.offered_tools(functions, body.tool_choice, flat=True)
    effort = body.reasoning.effort if body.reasoning else None
    kwargs = conversation.template_kwargs(body.chat_template_kwargs, effort, "reasoning.effort")
    wanted = structure(
        functions,
        read_choice(body.tool_choice, functions),
        body.parallel_tool_calls,
        responses_format(body.text),
        flat=True,
    )
    messages_of(body.instructions, body.input, earlier, served.seal.open)  # names what is wrong
    given = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    talk = Conversation(body.instructions, [*earlier, *given], tools, kwargs)
    deadline = served.deadline()
    async with served.before(deadline):
        prompt, dropped = await fitting_prompt(
            served, talk, body.max_output_tokens or 1, drop=body.truncation == "auto"
        )
        cap = ("max_output_tokens", body.max_output_tokens)
        name = new_id("resp_")
        job = await served.reply(name, body, prompt, tools, cap, wanted, deadline)
    return job, dropped


@dataclass
class _Answer:
    """A response and the generation it is made of."""

    served: Served
    job: Generation
    response: ResponseObject

    async def whole(self) -> dict[str, Any]:
        """Run to the end and return the response object."""
        async with self._running() as items:
            async for item in items:
                self.response.take(item)
        self._keep()
        return self.response.snapshot()

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Run, yielding the events of the Responses API in their order.

        The first come with the first of the generation: until then an error is a plain answer.
        """
        told = self.response.opening()
        async with self._running() as items:
            async for item in items:
                told += self.response.take(item)
                if self.response.ended:
                    self._keep()
                if told:
                    yield b"".join(told)
                told = []

    def start(self) -> EventLog:
        """Run in the background; the events can be read from the log at any time."""
        ticket = current_ticket()
        events = EventLog()
        events.add(self.response.opening())
        self.served.store.running[self.response.id] = Running(self.response, events)

        def end() -> None:
            del self.served.store.running[self.response.id]
            self._keep(events)
            if ticket is not None:
                ticket.leave()

        if ticket is not None:
            ticket.keep()
        work = run_in_background(self.response, events, self.served.run(self.job), end)
        self.served.background.start(work)
        return events

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncGenerator[Events, None]:
        """The generation, which can be found and cancelled by its id meanwhile."""
        running = self.served.store.running
        running[self.response.id] = Running(self.response)
        try:
            async with contextlib.aclosing(self.served.run(self.job)) as items:
                yield items
        finally:
            del running[self.response.id]

    def _keep(self, events: EventLog | None = None) -> None:
        """Store the finished response, if it is to be."""
        asked = self.response.asked
        if asked.stores:
            told, inputs = self.response.snapshot(), self.response.input_items
            nbytes = len(msgspec.json.encode((inputs[len(asked.earlier) :], told)))
            nbytes += events.nbytes if events is not None else 0
            self.served.store.put(Stored(asked.owner, told, inputs, nbytes, events))
