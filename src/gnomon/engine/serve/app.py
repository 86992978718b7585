"""The HTTP application: routes, and every error in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import gnomon
from gnomon.engine.serve.auth import ApiKey
from gnomon.engine.serve.errors import ApiError, bad_request
from gnomon.engine.serve.gate import Gatekeeper
from gnomon.engine.serve.handlers import cache, meta, stored_responses, tokens
from gnomon.engine.serve.handlers.chat import chat_completions
from gnomon.engine.serve.handlers.completions import completions
from gnomon.engine.serve.handlers.messages import count_tokens, messages
from gnomon.engine.serve.handlers.responses import responses
from gnomon.engine.serve.json_body import JsonRoute
from gnomon.engine.serve.limits import BodyLimit, HeadAsGet, SlowReaders
from gnomon.engine.serve.logs import RequestIds
from gnomon.engine.serve.openapi import describe
from gnomon.engine.serve.protocol.chat import ChatRequest
from gnomon.engine.serve.protocol.completions import CompletionRequest
from gnomon.engine.serve.protocol.messages import CountTokensRequest, MessagesRequest
from gnomon.engine.serve.protocol.responses import ResponsesRequest
from gnomon.engine.serve.protocol.tokens import DetokenizeRequest, TokenizeRequest
from gnomon.engine.serve.served import Served
from gnomon.engine.serve.sse import error_response


def build_app(served: Served) -> FastAPI:
    """The application that serves one model."""
    app = FastAPI(
        title="gnomon",
        version=gnomon.__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.router.route_class = JsonRoute
    _add_generation(app, served)
    _add_messages(app, served)
    _add_stored(app, served)
    _add_tokens(app, served)
    _add_meta(app, served)
    _add_errors(app)
    describe(app)
    # The last one added is the first to see a request.
    app.add_middleware(
        BodyLimit,
        most=served.options.max_body_bytes,
        timeout_s=served.options.stall_timeout_s,
    )
    app.add_middleware(Gatekeeper, gate=served.gate)
    if served.options.api_key:
        app.add_middleware(ApiKey, keys=served.options.api_key)
    app.add_middleware(HeadAsGet)
    app.add_middleware(SlowReaders, timeout_s=served.options.stall_timeout_s)
    app.add_middleware(RequestIds)
    return app


def _add_generation(app: FastAPI, served: Served) -> None:
    @app.post("/v1/chat/completions")
    async def _chat(body: ChatRequest, request: Request) -> Response:
        return await chat_completions(served, body, request)

    @app.post("/v1/responses")
    async def _responses(body: ResponsesRequest, request: Request) -> Response:
        return await responses(served, body, request)

    @app.post("/v1/completions")
    async def _completions(body: CompletionRequest, request: Request) -> Response:
        return await completions(served, body, request)


def _add_messages(app: FastAPI, served: Served) -> None:
    @app.post("/v1/messages")
    async def _messages(body: MessagesRequest, request: Request) -> Response:
        return await messages(served, body, request)

    @app.post("/v1/messages/count_tokens")
    async def _count_tokens(body: CountTokensRequest) -> Response:
        return await count_tokens(served, body)


def _add_stored(app: FastAPI, served: Served) -> None:
    @app.get("/v1/responses/{name}")
    async def _retrieve(name: str, request: Request) -> Response:
        return stored_responses.retrieve(served, name, request)

    @app.get("/v1/responses/{name}/input_items")
    async def _input_items(name: str, request: Request) -> Response:
        return stored_responses.input_items(served, name, request)

    @app.delete("/v1/responses/{name}")
    async def _delete(name: str, request: Request) -> Response:
        return stored_responses.delete(served, name, request)

    @app.post("/v1/responses/{name}/cancel")
    async def _cancel(name: str, request: Request) -> Response:
        return stored_responses.cancel(served, name, request)


def _add_tokens(app: FastAPI, served: Served) -> None:
    @app.post("/tokenize")
    async def _tokenize(body: TokenizeRequest) -> Response:
        return await tokens.tokenize(served, body)

    @app.post("/detokenize")
    async def _detokenize(body: DetokenizeRequest) -> Response:
        return await tokens.detokenize(served, body)


def _add_meta(app: FastAPI, served: Served) -> None:
    @app.get("/v1/models")
    async def _models() -> Response:
        return meta.models(served)

    @app.get("/v1/models/{name:path}")
    async def _model(name: str) -> Response:
        return meta.model(served, name)

    @app.get("/health")
    async def _health() -> Response:
        return meta.health(served)

    @app.get("/version")
    async def _version() -> Response:
        return meta.version()

    @app.get("/server_info")
    async def _server_info() -> Response:
        return meta.server_info(served)

    if served.options.debug_state:

        @app.get("/debug/state")
        async def _state() -> Response:
            return await meta.debug_state(served)

        @app.post("/debug/cache/flush")
        async def _flush(host: bool = False) -> Response:
            return await cache.flush(served, host=host)

    @app.get("/metrics")
    async def _metrics() -> Response:
        return await meta.metrics(served)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def _api_error(_: Request, error: ApiError) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def _validation(_: Request, error: RequestValidationError) -> Response:
        return error_response(validation_error(error.errors(), error.body))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        return error_response(_http_error(request, error))


def _http_error(request: Request, error: HTTPException) -> ApiError:
    if error.status_code == 404:
        message = f"There is nothing at {request.method} {request.url.path}."
        return ApiError(404, message, code="unknown_url")
    if error.status_code == 405:
        message = f"{request.url.path} does not take {request.method}."
        return ApiError(405, message, code="method_not_allowed", headers=error.headers)
    if error.status_code == 400:  # FastAPI's word for a body its JSON reader gave up on
        if isinstance(error.__cause__, ApiError):
            return error.__cause__
        why = "it is nested too deeply, or has a number of too many digits"
        return bad_request(f"The body cannot be read as JSON: {why}.", None, "invalid_json")
    return ApiError(error.status_code, str(error.detail))


def validation_error(problems: Sequence[Any], body: Any) -> ApiError:
    """The first thing wrong with a body, naming the field as clients spell it.

    Of a union's alternatives, the one that got furthest into the body says most.
    """
    field = problems[0]["loc"][:2]
    alternatives = [problem for problem in problems if problem["loc"][:2] == field]
    problem = max(alternatives, key=lambda found: _depth(found, body))
    if problem["type"] == "json_invalid":
        why = (problem.get("ctx") or {}).get("error", "")
        return bad_request(f"The body is not valid JSON: {why}.", None, "invalid_json")
    param = _path(problem["loc"][1:], body, absent=problem["type"] == "missing")
    message = str(problem["msg"]).removeprefix("Value error, ")
    if param is None:
        told = f"The body must be a JSON object, sent as application/json: {message}."
        return bad_request(told, None, "invalid_json")
    if problem["type"] == "missing":
        return bad_request(f"Missing required parameter: {param!r}.", param, "missing_parameter")
    return bad_request(f"Invalid value for {param!r}: {message}.", param, "invalid_value")


def _depth(problem: Any, body: Any) -> int:
    path = _path(problem["loc"][1:], body, absent=problem["type"] == "missing") or ""
    return path.count(".") + path.count("[")


def _path(location: Sequence[Any], body: Any, *, absent: bool) -> str | None:
    """A field's path such as ``messages[0].role``.

    Only steps that the body can take are kept: the rest are names of a union's alternatives. The
    last may be ``absent`` from the body.
    """
    path, here = "", body
    for at, step in enumerate(location):
        if isinstance(here, dict) and isinstance(step, str):
            if step not in here and not (absent and at == len(location) - 1):
                continue
            path += f".{step}" if path else step
            here = here.get(step)
        elif isinstance(here, list) and isinstance(step, int) and step < len(here):
            path += f"[{step}]"
            here = here[step]
    return path or None
