"""Every refusal has OpenAI's shape, names the field, and is the same streamed or not."""

from __future__ import annotations

import pytest
from tests.contract.asking import BASE, MESSAGES, Asker
from tests.contract.refusals import CASES, INVALID, REFUSALS, UNSUPPORTED


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("path", "name"), CASES, ids=lambda value: value)
def test_a_wrong_request_is_refused_by_name(
    asker: Asker, path: str, name: str, stream: bool
) -> None:
    change, param, code = REFUSALS[path][name]
    answer = asker.post(path, {"model": "nano", **BASE[path], "stream": stream, **change})
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == ({"type", "error"} if path == MESSAGES else {"error"})
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, error
    assert len(error["message"]) > 20
    assert "Traceback" not in error["message"]
    assert error["code"] in ((code,) if code else (INVALID, UNSUPPORTED)), error
