"""Errors as clients see them: OpenAI's shape, one sentence, never a traceback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnomon.engine.errors import (
    AdmissionError,
    EngineBusy,
    EngineDead,
    EngineError,
    EngineStalled,
    GrammarTooSlow,
)

INVALID_REQUEST = "invalid_request_error"


class ApiError(Exception):
    """A request cannot be answered.

    Args:
        status: HTTP status.
        message: what is wrong and what to change.
        param: the request field at fault, as ``messages[2].content``.
        code: stable identifier.
        kind: OpenAI's error type; by default that of the status.
        headers: extra response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind or _KINDS.get(status, INVALID_REQUEST if status < 500 else "server_error")
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}


_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable",
}


class ClientStalled(Exception):
    """A client stopped reading its answer; there is nobody to tell."""


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """A 400: the request is wrong."""
    return ApiError(400, message, param=param, code=code)


def missing(param: str, message: str) -> ApiError:
    """A 400: something that must be there is not."""
    return bad_request(message, param, "missing_parameter")


def unsupported(param: str, what: str) -> ApiError:
    """A 400: a field OpenAI knows and this server cannot honour."""
    return bad_request(what, param, "unsupported_parameter")


def unavailable(message: str) -> ApiError:
    """A 503: the engine is not there."""
    return ApiError(503, message, code="engine_unavailable")


def from_engine(error: EngineError) -> ApiError:
    """What the engine said, as a client should see it."""
    match error:
        case AdmissionError():
            return bad_request(str(error), code="request_not_admitted")
        case GrammarTooSlow():
            return bad_request(str(error), code="structure_too_slow")
        case EngineBusy():
            return ApiError(429, str(error), code="too_many_requests", headers={"retry-after": "1"})
        case EngineDead():
            return unavailable(f"The engine is gone: {error}")
        case EngineStalled():
            return unavailable(f"The engine does not answer: {error}")
        case _:
            return ApiError(500, f"The engine failed: {error}", code="engine_error")


def too_late(timeout_s: float) -> ApiError:
    """A 504: the request's time is over."""
    return ApiError(
        504,
        f"The request took longer than {timeout_s:g} s, the most this server allows.",
        code="request_timeout",
    )


def internal() -> ApiError:
    """A 500 that tells nothing; the log has the rest."""
    return ApiError(500, "The server failed; its log says why.", code="internal_error")
