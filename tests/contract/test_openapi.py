"""Requests made from the server's own OpenAPI document, and answers held to it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi import checks as openapi
from tests.clients.servers import ServerProcess


@pytest.fixture(scope="session")
def document(nano: ServerProcess) -> Any:
    return schemathesis.openapi.from_url(f"{nano.url}/openapi.json")


EXAMPLES = 6  # for each operation and mode
HELD = [
    checks.not_a_server_error,
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_headers_conformance,
    openapi.response_schema_conformance,
    openapi.unsupported_method,
]


def hold(case: Any) -> None:
    """Send one request that the document allows, or just does not, and check the answer."""
    if isinstance(case.body, dict):
        if "model" in case.body:
            case.body["model"] = "nano"  # or every answer is that there is no such model
        cap = "max_output_tokens" if case.operation.path == "/v1/responses" else "max_tokens"
        if case.body.get(cap) is None or isinstance(case.body[cap], int):
            case.body[cap] = 2
    case.call_and_validate(checks=HELD, timeout=30)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_answers_are_what_the_document_says(document: Any, mode: GenerationMode) -> None:
    bounded = settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for found in document.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue  # nothing to get wrong
        bounded(given(case=operation.as_strategy(generation_mode=mode))(hold))()


def test_the_document_names_every_endpoint(nano: ServerProcess) -> None:
    told = httpx.get(f"{nano.url}/openapi.json").json()
    paths = {"/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/models", "/health"}
    assert paths <= set(told["paths"])
    for methods in told["paths"].values():
        for operation in methods.values():
            assert "422" not in operation["responses"]
            assert "default" in operation["responses"]
