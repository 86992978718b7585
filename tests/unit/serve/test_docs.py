"""The API reference names every field, in the class the server puts it in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gnomon.engine.serve.protocol.chat import ChatRequest
from gnomon.engine.serve.protocol.common import Body, SamplingFields
from gnomon.engine.serve.protocol.completions import CompletionRequest
from gnomon.engine.serve.protocol.messages import CountTokensRequest, MessagesRequest
from gnomon.engine.serve.protocol.responses import ResponsesRequest
from gnomon.engine.serve.protocol.tokens import DetokenizeRequest, TokenizeRequest

DOCUMENT = Path(__file__).parents[3] / "docs" / "api.md"
COMMON = "Fields of every generating endpoint"


def documented(heading: str) -> dict[str, str]:
    """Field to class, of one section of the document."""
    section = re.split(r"^## ", DOCUMENT.read_text(), flags=re.MULTILINE)
    body = next(part for part in section if part.startswith(heading + "\n"))
    rows = [line.split(" | ") for line in body.splitlines() if line.startswith("| `")]
    return {name: row[1].strip() for row in rows for name in re.findall(r"`(\w+)`", row[0])}


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("`POST /v1/chat/completions`", ChatRequest),
        ("`POST /v1/responses`", ResponsesRequest),
        ("`POST /v1/completions`", CompletionRequest),
        ("`POST /v1/messages`", MessagesRequest),
        ("`POST /v1/messages/count_tokens`", CountTokensRequest),
        ("`POST /tokenize`", TokenizeRequest),
        ("`POST /detokenize`", DetokenizeRequest),
    ],
)
def test_every_field_is_documented(heading: str, model: type[Body]) -> None:
    common = documented(COMMON) if issubclass(model, SamplingFields) else {}
    found = {**common, **documented(heading)}
    real = dict.fromkeys(model.model_fields, "supported")
    real |= dict.fromkeys(model.ACCEPTED, "accepted")
    real |= dict.fromkeys(model.NEUTRAL, "neutral only")
    assert found == real
