"""A small scripted OpenAI-compatible server: a real process with latencies, answers and faults.

Run it: ``python tests/fakes/openai_server.py --port 0 --fault 500 --fault-every 3``. It prints
``listening on http://127.0.0.1:PORT`` on stdout when it accepts connections, serves Chat
Completions and Responses (streaming or not), ``/v1/models``, ``/health``, ``/version``,
``/server_info`` and ``/metrics``, and exits 0 on SIGTERM. ``GET /fake/requests`` returns every
body it was sent. Flags it does not know are ignored, so it can stand where ``gnomon serve`` does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

Json = dict[str, Any]

RIGHT_ANSWERS: dict[str, list[tuple[str, Json]]] = {
    "current Gold price": [("get_metal_price", {"metal": "Gold", "measure": "ounce"})],
    "'The Alchemist'": [
        ("library_search_book", {"book_name": "The Alchemist", "city": "New York"}),
    ],
    "induced electromagnetic force": [
        ("calculate_em_force", {"b_field": 5, "area": 2, "d_time": 4}),
        ("calculate_em_force", {"b_field": 5, "area": 2, "d_time": 10}),
    ],
}
"""What BFCL's smoke cases accept, by a phrase of the prompt; irrelevance_0 accepts plain text."""

FAULTS = (
    "none",
    "429",
    "500",
    "400",
    "hang",  # accepts the request and never answers
    "disconnect",  # closes the connection without an answer
    "stall",  # streams some tokens, then nothing; a plain request hangs
    "cut",  # streams some tokens, then closes; a plain request is closed
    "malformed",  # 200 with a body that is not JSON
    "no-usage",  # a right answer without the usage object
    "no-choices",  # 200 with JSON of another shape
    "exit",  # the whole process dies
)


@dataclass
class Script:
    """What the server does, and what it has seen."""

    model: str
    answers: str
    ttft_s: float
    itl_s: float
    default_tokens: int
    api_key: str | None
    fault: str
    fault_after: int
    fault_every: int
    fault_count: int
    fault_match: str
    ready_at: float
    engine: str = "fake"
    facts: Json = field(default_factory=dict)
    bodies: list[Json] = field(default_factory=list)
    served: Iterator[int] = field(default_factory=itertools.count)
    matched: int = 0
    faults_made: int = 0
    cache: set[str] = field(default_factory=set)
    totals: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("prompt", "generation", "queries", "hits", "success", "failed"), 0
        )
    )
    running: int = 0

    def fault_now(self, body: Json) -> str:
        """The fault this request meets: every ``fault_every``-th matching one, up to a count."""
        if self.fault == "none" or self.fault_match not in json.dumps(body):
            return "none"
        self.matched += 1
        due = self.matched > self.fault_after and (
            (self.matched - self.fault_after - 1) % self.fault_every == 0
        )
        if not due or (self.fault_count and self.faults_made >= self.fault_count):
            return "none"
        self.faults_made += 1
        self.totals["failed"] += 1
        return self.fault


@dataclass(frozen=True)
class Answer:
    """One scripted answer."""

    text: str
    calls: list[tuple[str, Json]]
    pieces: list[str]
    usage: tuple[int, int, int]
    truncated: bool


BLOCK = 64


def prompt_text(body: Json) -> str:
    """Everything that is prompt, as one string; a growing history extends it."""
    return json.dumps(body.get("tools") or []) + json.dumps(
        body.get("messages") or body.get("input") or body.get("prompt") or ""
    ).rstrip("]")


def count_prompt(script: Script, text: str) -> tuple[int, int]:
    """Prompt tokens (four characters each) and how many of them an earlier prompt shares."""
    tokens = [text[i : i + 4] for i in range(0, len(text), 4)]
    hits, digest, seen = 0, hashlib.sha256(), True
    for start in range(0, len(tokens) - len(tokens) % BLOCK, BLOCK):
        digest.update("".join(tokens[start : start + BLOCK]).encode())
        key = digest.hexdigest()
        seen = seen and key in script.cache
        hits += BLOCK if seen else 0
        script.cache.add(key)
    hits = min(hits, max(0, len(tokens) - 1))
    script.totals["queries"] += len(tokens)
    script.totals["hits"] += hits
    script.totals["prompt"] += len(tokens)
    return len(tokens), hits


def answer(script: Script, body: Json) -> Answer:
    """Choose what to say: the calls BFCL accepts, wrong ones, or a text of the asked length."""
    text = prompt_text(body)
    prompt, cached = count_prompt(script, text)
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    limit = limit or body.get("max_output_tokens") or script.default_tokens
    calls: list[tuple[str, Json]] = []
    if body.get("tools") and body.get("tool_choice") != "none":
        calls = choose_calls(script, body, text)
    words = [f"word{i} " for i in range(int(limit))]
    if calls:
        pieces = [f"{name}{json.dumps(args)}" for name, args in calls]
        generated = sum(len(piece) // 4 + 1 for piece in pieces)
        words = []
    else:
        generated = len(words)
    script.totals["generation"] += generated
    ignore_eos = bool(body.get("ignore_eos"))
    return Answer("".join(words), calls, words, (prompt, generated, cached), ignore_eos)


def choose_calls(script: Script, body: Json, text: str) -> list[tuple[str, Json]]:
    """The calls of this prompt under the chosen policy; none where text is the answer."""
    right = next((calls for phrase, calls in RIGHT_ANSWERS.items() if phrase in text), None)
    if script.answers == "text":
        return []
    tool = body["tools"][0]
    name = tool.get("name") or tool.get("function", {}).get("name")
    if script.answers == "broken-json" and right is None:
        return [(name, {})]
    if script.answers == "wrong":
        return [(name, {"wrong": True})]
    if right is None and "triangle" not in text:
        return [(name, {})]  # any other prompt with tools gets one call: a round trip can be tried
    return right or []


def arguments(script: Script, args: Json) -> str:
    """A call's arguments as JSON, or as something that only looks like it."""
    return '{"metal": "Go' if script.answers == "broken-json" else json.dumps(args)


def chat_body(script: Script, made: Answer, number: int, with_usage: bool = True) -> Json:
    """A whole Chat Completions answer."""
    message: Json = {"role": "assistant", "content": made.text or None}
    if made.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{i}",
                "type": "function",
                "function": {"name": name, "arguments": arguments(script, args)},
            }
            for i, (name, args) in enumerate(made.calls)
        ]
    body: Json = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": script.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish(made)}],
    }
    if with_usage:
        body["usage"] = chat_usage(made)
    return body


def finish(made: Answer) -> str:
    if made.calls:
        return "tool_calls"
    return "length" if made.truncated else "stop"


def chat_usage(made: Answer) -> Json:
    prompt, generated, cached = made.usage
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def sse(payload: Json, event: str | None = None) -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(payload)}\n\n".encode()


async def chat_stream(
    script: Script, made: Answer, number: int, body: Json, breaker: Breaker
) -> AsyncIterator[bytes]:
    """Chunks of a Chat Completions answer, at the scripted pace."""
    options = body.get("stream_options") or {}
    shared = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": script.model,
    }

    def chunk(delta: Json, reason: str | None = None) -> bytes:
        return sse({**shared, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

    await asyncio.sleep(script.ttft_s)
    yield chunk({"role": "assistant", "content": ""})
    for i, piece in enumerate(made.pieces):
        if i == len(made.pieces) // 2:
            await breaker.midway()
        yield chunk({"content": piece})
        await asyncio.sleep(script.itl_s)
    for i, (name, args) in enumerate(made.calls):
        await breaker.midway()
        call = {"name": name, "arguments": arguments(script, args)}
        yield chunk(
            {
                "tool_calls": [
                    {"index": i, "id": f"call_{number}_{i}", "type": "function", "function": call}
                ]
            }
        )
    yield chunk({}, finish(made))
    if options.get("include_usage") and breaker.fault != "no-usage":
        yield sse({**shared, "choices": [], "usage": chat_usage(made)})
    script.totals["success"] += 1
    yield b"data: [DONE]\n\n"


class Cut(Exception):
    """Ends the handling of a request whose connection was closed on purpose."""


@dataclass(frozen=True)
class Breaker:
    """The fault one request meets, and the connection to close where that is the fault."""

    fault: str
    transport: asyncio.Transport

    async def before(self) -> Response | None:
        """The answer of a fault that comes before any token, or None to go on."""
        if self.fault == "exit":
            os._exit(3)
        if self.fault == "hang":
            await asyncio.sleep(3600)
        if self.fault == "disconnect":
            self.transport.abort()
            raise Cut
        if self.fault == "malformed":
            return PlainTextResponse("<html>not json</html>", media_type="application/json")
        if self.fault == "no-choices":
            return JSONResponse({"object": "something else"})
        if self.fault == "429":
            return error(429, "Too many requests.", "rate_limit_error")
        if self.fault == "500":
            return error(500, "The engine raised an exception.", "internal_error")
        if self.fault == "400":
            return error(400, "This request cannot be served.", "invalid_request_error")
        return None

    async def midway(self) -> None:
        """The faults that come after some tokens."""
        if self.fault == "stall":
            await asyncio.sleep(3600)
        if self.fault == "cut":
            self.transport.abort()
            raise Cut
        if self.fault == "exit":
            os._exit(3)


def response_items(script: Script, made: Answer, number: int) -> list[Json]:
    """The output items of a Responses answer."""
    if made.calls:
        return [
            {
                "type": "function_call",
                "id": f"fc_{number}_{i}",
                "call_id": f"call_{number}_{i}",
                "name": name,
                "arguments": arguments(script, args),
                "status": "completed",
            }
            for i, (name, args) in enumerate(made.calls)
        ]
    part = {"type": "output_text", "text": made.text, "annotations": []}
    return [
        {
            "type": "message",
            "id": f"msg_{number}",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
    ]


def response_body(
    script: Script, made: Answer, number: int, status: str = "completed", with_usage: bool = True
) -> Json:
    """A whole Responses answer."""
    prompt, generated, cached = made.usage
    done = status == "completed"
    usage = {
        "input_tokens": prompt,
        "output_tokens": generated,
        "total_tokens": prompt + generated,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "model": script.model,
        "output": response_items(script, made, number) if done else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "usage": usage if done and with_usage else None,
    }


async def response_stream(
    script: Script, made: Answer, number: int, breaker: Breaker
) -> AsyncIterator[bytes]:
    """Events of a Responses answer, in the order and with the fields the SDK's helper demands."""
    sequence = itertools.count()

    def event(kind: str, **fields: Any) -> bytes:
        return sse({"type": kind, "sequence_number": next(sequence), **fields}, kind)

    started = response_body(script, made, number, "in_progress")
    yield event("response.created", response=started)
    yield event("response.in_progress", response=started)
    await asyncio.sleep(script.ttft_s)
    for index, item in enumerate(response_items(script, made, number)):
        empty = {**item, "status": "in_progress"}
        empty |= {"content": []} if item["type"] == "message" else {"arguments": ""}
        yield event("response.output_item.added", output_index=index, item=empty)
        where = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            text = {**where, "content_index": 0}
            part = item["content"][0]
            yield event("response.content_part.added", **text, part={**part, "text": ""})
            for i, piece in enumerate(made.pieces):
                if i == len(made.pieces) // 2:
                    await breaker.midway()
                yield event("response.output_text.delta", **text, delta=piece, logprobs=[])
                await asyncio.sleep(script.itl_s)
            yield event("response.output_text.done", **text, text=part["text"], logprobs=[])
            yield event("response.content_part.done", **text, part=part)
        else:
            await breaker.midway()
            args = item["arguments"]
            yield event("response.function_call_arguments.delta", **where, delta=args)
            yield event(
                "response.function_call_arguments.done", **where, arguments=args, name=item["name"]
            )
        yield event("response.output_item.done", output_index=index, item=item)
    script.totals["success"] += 1
    yield event("response.completed", response=response_body(script, made, number))


def error(status: int, message: str, kind: str) -> JSONResponse:
    """An error in OpenAI's shape."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": str(status)}}
    return JSONResponse(body, status)


async def generate(request: Request) -> Response:
    """Chat Completions and Responses."""
    script: Script = request.app.state.script
    if script.api_key and request.headers.get("authorization") != f"Bearer {script.api_key}":
        return error(401, "Missing or wrong API key.", "authentication_error")
    try:
        body = await request.json()
    except json.JSONDecodeError:
        return error(400, "The body is not JSON.", "invalid_request_error")
    script.bodies.append({"path": request.url.path, "body": body})
    if body.get("model") != script.model:
        return error(404, f"The model `{body.get('model')}` does not exist.", "not_found_error")
    number = next(script.served)
    breaker = Breaker(script.fault_now(body), request.scope["extensions"]["fake.transport"])
    streaming = bool(body.get("stream"))
    if not (streaming and breaker.fault == "exit"):
        response = await breaker.before()
        if response is not None:
            return response
    made = answer(script, body)
    chat = request.url.path.endswith("/chat/completions")
    if streaming:
        chunks = (
            chat_stream(script, made, number, body, breaker)
            if chat
            else response_stream(script, made, number, breaker)
        )
        return StreamingResponse(counted(script, chunks), media_type="text/event-stream")
    await asyncio.sleep(script.ttft_s + script.itl_s * made.usage[1])
    await breaker.midway()
    script.totals["success"] += 1
    usage = breaker.fault != "no-usage"
    whole = (
        chat_body(script, made, number, usage)
        if chat
        else response_body(script, made, number, with_usage=usage)
    )
    return JSONResponse(whole)


async def counted(script: Script, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Keep the gauge of running requests right, whatever ends the stream."""
    script.running += 1
    try:
        async for chunk in chunks:
            yield chunk
    finally:
        script.running -= 1


async def models(request: Request) -> Response:
    model = {"id": request.app.state.script.model, "object": "model", "created": 0}
    return JSONResponse({"object": "list", "data": [{**model, "owned_by": "fake"}]})


async def health(request: Request) -> Response:
    ready = time.monotonic() >= request.app.state.script.ready_at
    return Response(status_code=200 if ready else 503)


async def version(request: Request) -> Response:
    return JSONResponse({"version": "fake"})


async def server_info(request: Request) -> Response:
    script: Script = request.app.state.script
    return JSONResponse(
        {
            "engine": script.engine,
            "version": "fake",
            "facts": script.facts,
            "served_model_names": [script.model],
            "generation_defaults": {"max_new_tokens": script.default_tokens},
        }
    )


async def metrics(request: Request) -> Response:
    """The counters the harness reads, under the names `gnomon serve` uses."""
    script: Script = request.app.state.script
    t = script.totals
    lines = [
        "# TYPE gnomon:prompt_tokens_total counter",
        f"gnomon:prompt_tokens_total {t['prompt']}",
        "# TYPE gnomon:generation_tokens_total counter",
        f"gnomon:generation_tokens_total {t['generation']}",
        "# TYPE gnomon:prefix_cache_queries_total counter",
        f"gnomon:prefix_cache_queries_total {t['queries']}",
        "# TYPE gnomon:prefix_cache_hits_total counter",
        f"gnomon:prefix_cache_hits_total {t['hits']}",
        "# TYPE gnomon:request_success_total counter",
        f'gnomon:request_success_total{{finished_reason="stop"}} {t["success"]}',
        "# TYPE gnomon:num_requests_running gauge",
        f"gnomon:num_requests_running {script.running}",
        "# TYPE gnomon:kv_cache_usage_ratio gauge",
        "gnomon:kv_cache_usage_ratio 0.25",
    ]
    return PlainTextResponse("\n".join(lines) + "\n")


async def requests_seen(request: Request) -> Response:
    return JSONResponse(request.app.state.script.bodies)


def build_app(script: Script) -> Starlette:
    """The application of one script."""
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", generate, methods=["POST"]),
            Route("/v1/responses", generate, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
            Route("/version", version),
            Route("/server_info", server_info),
            Route("/metrics", metrics),
            Route("/fake/requests", requests_seen),
        ]
    )
    app.state.script = script
    return app


class QuietCut:
    """Swallows `Cut`, which has done its work by then, so that no traceback is printed."""

    def __init__(self, app: Starlette) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with contextlib.suppress(Cut):
            await self.app(scope, receive, send)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags; unknown ones are ignored on purpose."""
    p = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=0)
    p.add_argument("--served-model-name", default="fake")
    p.add_argument("--api-key", default=None)
    p.add_argument("--answers", choices=("right", "wrong", "text", "broken-json"), default="right")
    p.add_argument("--ttft-ms", type=float, default=5.0)
    p.add_argument("--itl-ms", type=float, default=1.0)
    p.add_argument("--default-tokens", type=int, default=16)
    p.add_argument("--startup-s", type=float, default=0.0, help="503 from /health for so long")
    p.add_argument("--engine-name", default="fake", help="as /server_info reports it")
    p.add_argument("--facts", default="{}", help="JSON object of facts for /server_info")
    p.add_argument("--fault", choices=FAULTS, default="none")
    p.add_argument("--fault-after", type=int, default=0, help="first let so many requests pass")
    p.add_argument("--fault-every", type=int, default=1, help="then break every Nth")
    p.add_argument("--fault-count", type=int, default=0, help="at most so many; 0: no limit")
    p.add_argument("--fault-match", default="", help="only requests whose JSON contains this")
    return p.parse_known_args(argv)[0]


def main() -> None:
    """Serve until told to stop."""
    args = parse()
    script = Script(
        model=args.served_model_name,
        answers=args.answers,
        ttft_s=args.ttft_ms / 1e3,
        itl_s=args.itl_ms / 1e3,
        default_tokens=args.default_tokens,
        api_key=args.api_key,
        fault=args.fault,
        fault_after=args.fault_after,
        fault_every=args.fault_every,
        fault_count=args.fault_count,
        fault_match=args.fault_match,
        ready_at=time.monotonic() + args.startup_s,
        engine=args.engine_name,
        facts=json.loads(args.facts),
    )
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((args.host, args.port))
    listener.listen(512)
    config = uvicorn.Config(
        QuietCut(build_app(script)),
        log_level="critical",
        timeout_graceful_shutdown=1,
        http=_protocol(),
        lifespan="off",
    )
    server = uvicorn.Server(config)
    print(f"listening on http://{args.host}:{listener.getsockname()[1]}", flush=True)
    server.run(sockets=[listener])


def _protocol() -> Any:
    """uvicorn's HTTP protocol, with its transport in reach so that a fault can close it."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            inner = self.app

            async def app(scope: Any, receive: Any, send: Any) -> None:
                scope.setdefault("extensions", {})["fake.transport"] = transport
                await inner(scope, receive, send)

            self.app = app

    return Protocol


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main()
