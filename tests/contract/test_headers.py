"""Headers of every kind of answer."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.asking import CHAT, COMPLETIONS, RESPONSES, Asker

KINDS: dict[str, tuple[str, dict[str, Any], bool, int, str]] = {
    "chat": (CHAT, {}, False, 200, "application/json"),
    "chat stream": (CHAT, {}, True, 200, "text/event-stream; charset=utf-8"),
    "response": (RESPONSES, {}, False, 200, "application/json"),
    "response stream": (RESPONSES, {}, True, 200, "text/event-stream; charset=utf-8"),
    "completion": (COMPLETIONS, {}, False, 200, "application/json"),
    "completion stream": (COMPLETIONS, {}, True, 200, "text/event-stream; charset=utf-8"),
    "refusal": (CHAT, {"max_tokens": 0}, False, 400, "application/json"),
    "refused stream": (CHAT, {"max_tokens": 0}, True, 400, "application/json"),
    "unknown model": (CHAT, {"model": "gpt-9"}, False, 404, "application/json"),
}


@pytest.mark.parametrize("name", KINDS)
def test_an_answer_has_its_headers(asker: Asker, name: str) -> None:
    path, change, stream, status, kind = KINDS[name]
    answer = asker.ask(path, change, stream=stream)
    assert answer.status_code == status
    assert answer.headers["content-type"] == kind
    assert "access-control-allow-origin" not in answer.headers
    if not stream:
        assert int(answer.headers["content-length"]) == len(answer.content)
    if stream and status == 200:
        assert answer.headers["cache-control"] == "no-cache"
        assert "content-length" not in answer.headers


def test_a_cross_origin_question_gets_no_permission(asker: Asker) -> None:
    headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answer = asker.http.options(CHAT, headers=headers)
    assert answer.status_code == 405
    assert "access-control-allow-origin" not in answer.headers
    assert answer.json()["error"]["code"] == "method_not_allowed"
