from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gnomon.harness.adapters.protocol import Setting
from gnomon.harness.evidence.verdicts import CheckState, Scope
from gnomon.harness.launch import probes
from gnomon.harness.launch.attest import compare
from gnomon.harness.launch.probes import ProbeFailed
from gnomon.harness.nouns import ServerAddress

SERVER = ServerAddress("127.0.0.1", 1, "m")


@pytest.mark.parametrize(
    ("asked", "info", "passes"),
    [
        ("mxfp4", {"facts": {"x": "mxfp4"}}, True),
        ("mxfp4", {"facts": {"x": "bf16"}}, False),
        (8, {"facts": {"x": 8}}, True),
        (8, {"facts": {"x": "8"}}, False),
        (True, {"facts": {"x": 1}}, False),
        (1, {"facts": {"x": True}}, False),
        (True, {"facts": {"x": True}}, True),
        (0, {"facts": {"x": None}}, False),
        (0, {"facts": {}}, False),
        (0, {"facts": "none"}, False),
        (0, {}, False),
    ],
)
def test_only_the_very_setting_that_was_asked_passes(
    asked: Any, info: dict[str, Any], passes: bool
) -> None:
    (check,) = compare([Setting("x", asked, "facts.x")], info, Scope.SMOKE)
    assert (check.state is CheckState.PASSED) == passes
    assert repr(asked) in check.evidence or "as asked" in check.evidence


def chunk(**fields: Any) -> str:
    return "data: " + json.dumps(fields)


TOKEN = chunk(choices=[{"delta": {"content": "a"}, "finish_reason": None}])
END = chunk(choices=[{"delta": {}, "finish_reason": "stop"}])
USAGE = chunk(choices=[], usage={"completion_tokens": 1})
DONE = "data: [DONE]"

STREAMS = [
    ([TOKEN, END, USAGE, DONE], None),
    ([": ping", "event: x", TOKEN, END, USAGE, DONE], None),
    ([TOKEN, END, USAGE], "without [DONE]"),
    ([TOKEN, USAGE, DONE], "exactly one known finish_reason"),
    ([TOKEN, END, END, USAGE, DONE], "exactly one known finish_reason"),
    ([TOKEN, END, DONE], "asked for usage"),
    ([TOKEN, END, USAGE, USAGE, DONE], "2 times"),
    ([TOKEN, END, chunk(choices=[], usage={"completion_tokens": 0}), DONE], "0 completion"),
    ([DONE], "no choices"),
    (["data: {oops", DONE], "not JSON"),
    (["data: []", DONE], "not an object"),
    ([TOKEN, chunk(error={"message": "engine died"})], "engine died"),
]


@pytest.mark.parametrize(("lines", "complaint"), STREAMS)
def test_a_stream_is_judged_by_its_events(lines: list[str], complaint: str | None) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text="\n\n".join(lines) + "\n\n")

    client = httpx.Client(base_url=SERVER.origin, transport=httpx.MockTransport(answer))
    if complaint is None:
        assert "finish_reason 'stop'" in probes.streamed_completion(client, SERVER).evidence
    else:
        with pytest.raises(ProbeFailed, match=complaint.replace("[", r"\[")):
            probes.streamed_completion(client, SERVER)


def message(
    content: Any = "fine", calls: Any = None, reason: str = "stop", tokens: int = 10
) -> Any:
    body = {"role": "assistant", "content": content, "tool_calls": calls}
    return {
        "choices": [{"message": body, "finish_reason": reason}],
        "usage": {"prompt_tokens": tokens},
    }


def call(**changes: Any) -> dict[str, Any]:
    whole = {"id": "c1", "function": {"name": "get_weather", "arguments": '{"city": "x"}'}}
    return {**whole, **changes}


ROUND_TRIPS = [
    ([message(), message(tokens=40)], None),
    ([message(None, [call()], "tool_calls"), message(tokens=40)], None),
    ([message(), message(tokens=10)], "the server dropped them"),
    ([message(None, [call(id="")], "tool_calls"), message(tokens=40)], "without id"),
    ([message(None, [call(function={"name": "f", "arguments": "{oops"})]), message(tokens=40)],
     "not JSON"),
    ([message(None, [call(function={"name": "f", "arguments": "[]"})]), message(tokens=40)],
     "arguments object"),
    ([message(None, [], "tool_calls"), message(tokens=40)], "there is none"),
    ([message(reason="because"), message(tokens=40)], "no known finish_reason"),
    ([{"choices": []}, message(tokens=40)], "exactly one choice"),
    ([message(tokens=0), message(tokens=40)], "0 prompt tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("answers", "complaint"), ROUND_TRIPS)
def test_a_tool_round_trip_is_judged_by_its_shape(
    answers: list[Any], complaint: str | None
) -> None:
    left = list(answers)

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=left.pop(0))

    client = httpx.Client(base_url=SERVER.origin, transport=httpx.MockTransport(answer))
    if complaint is None:
        evidence = probes.tool_round_trip(client, SERVER).evidence
        assert "added 30 prompt tokens" in evidence
    else:
        with pytest.raises(ProbeFailed, match=complaint):
            probes.tool_round_trip(client, SERVER)
