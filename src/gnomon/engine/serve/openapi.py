"""The OpenAPI document: FastAPI's of the requests, and what the answers really are."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_TEXT: dict[str, Any] = {"type": "string"}
_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_USAGE: dict[str, Any] = {"type": "object", "required": ["total_tokens"]}


def _answer(kind: str, **members: Any) -> dict[str, Any]:
    properties = {"id": _TEXT, "object": {"const": kind}, "model": _TEXT, **members}
    return {"type": "object", "required": list(properties), "properties": properties}


_CHOICES: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "object", "required": ["index", "finish_reason"]},
}
_ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": _answer("chat.completion", choices=_CHOICES, usage=_USAGE),
    "/v1/completions": _answer("text_completion", choices=_CHOICES, usage=_USAGE),
    "/v1/responses": _answer(
        "response", status=_TEXT, output={"type": "array", "items": {"type": "object"}}
    ),
}
"""What whole answers have; those of other endpoints are any JSON."""


def describe(app: FastAPI) -> None:
    """Let an application's ``/openapi.json`` tell its errors, its streams and its answers."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes)
            app.openapi_schema = _corrected(document)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def _corrected(document: dict[str, Any]) -> dict[str, Any]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            responses = operation["responses"]
            responses.pop("422", None)  # FastAPI's own; a wrong body is a 400 here
            responses["default"] = {
                "description": "An error",
                "content": {"application/json": {"schema": _ERROR}},
            }
            content = responses["200"].setdefault("content", {})
            if path == "/metrics":
                responses["200"]["content"] = {"text/plain": {"schema": _TEXT}}
            elif "post" in methods:
                content["application/json"] = {"schema": _ANSWERS.get(path, {})}
                content["text/event-stream"] = {"schema": _TEXT}
    schemas = document.get("components", {}).get("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    return document
