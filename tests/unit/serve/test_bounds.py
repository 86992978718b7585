"""The gate, the response store and the log format, without a server."""

from __future__ import annotations

import json
import logging

import pytest
from starlette.datastructures import Headers

from gnomon.engine.log_format import configure_log
from gnomon.engine.serve import store as store_module
from gnomon.engine.serve.errors import ApiError
from gnomon.engine.serve.gate import Gate, GateBounds, key_digest
from gnomon.engine.serve.options import ServeOptions
from gnomon.engine.serve.store import ResponseStore, Stored


def kept(name: str, nbytes: int = 1) -> Stored:
    return Stored("me", {"id": name}, (), nbytes)


def test_the_store_is_bounded_in_number_and_bytes() -> None:
    store = ResponseStore(2)
    for name in "abc":
        store.put(kept(name))
    with pytest.raises(ApiError):
        store.get("a", "me")
    assert store.get("b", "me").response == {"id": "b"}
    store.put(kept("huge", store_module._MOST_BYTES + 1))
    for name in ("b", "c", "huge"):
        with pytest.raises(ApiError):
            store.get(name, "me")
    store.put(kept("d"))
    assert store.get("d", "me")
    assert not ResponseStore(0).keeps


def test_a_request_that_leaves_makes_room() -> None:
    gate = Gate(GateBounds(2, 1))
    first = gate.enter("a")
    with pytest.raises(ApiError, match="key") as caught:
        gate.enter("a")
    assert (caught.value.status, caught.value.headers) == (429, {"retry-after": "1"})
    gate.enter("b")
    with pytest.raises(ApiError, match="server"):
        gate.enter("c")
    first.leave()
    gate.enter("a")
    assert gate.open_per_key == {"a": 1, "b": 1}


def test_a_request_waits_until_its_first_token() -> None:
    gate = Gate(GateBounds(9, waiting=2, waiting_per_key=1))
    first = gate.enter("a")
    with pytest.raises(ApiError, match="1 requests with this API key wait") as caught:
        gate.enter("a")
    assert (caught.value.status, caught.value.code) == (429, "too_many_requests")
    first.begin()
    first.begin()
    second = gate.enter("a")
    gate.enter("b")
    with pytest.raises(ApiError, match="2 requests wait"):
        gate.enter("c")
    second.leave()
    assert (gate.open, gate.waiting) == (2, 1)
    first.leave()
    assert gate.open_per_key == {"b": 1}


def test_a_draining_gate_lets_nobody_in() -> None:
    gate = Gate(GateBounds(2))
    gate.draining = True
    with pytest.raises(ApiError) as caught:
        gate.enter("a")
    assert (caught.value.status, caught.value.code) == (503, "shutting_down")


def test_a_key_s_digest_tells_keys_apart_and_does_not_show_them() -> None:
    digests = {
        key_digest(Headers({name: value}))
        for name, value in (
            ("authorization", "Bearer one"), ("authorization", "Bearer two"), ("x-api-key", "one"),
            ("accept", "x"),
        )
    }  # fmt: skip
    assert len(digests) == 3
    assert not any("one" in digest and digest != "none" for digest in digests)


def test_json_logs_are_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.root.handlers[:]
    try:
        configure_log("json")
        logging.getLogger("x").info("hello %s", "you", extra={"fields": {"status": 200}})
        try:
            raise ValueError("boom")
        except ValueError:
            logging.getLogger("x").exception("failed")
        first, second = map(json.loads, capsys.readouterr().err.splitlines())
    finally:
        logging.root.handlers[:] = before
    assert (first["message"], first["status"], first["level"]) == ("hello you", 200, "INFO")
    assert "ValueError: boom" in second["exception"]


def test_one_key_or_more() -> None:
    assert ServeOptions(model="m").api_key == ()
    assert ServeOptions(model="m", api_key="a").api_key == ("a",)  # type: ignore[arg-type]
    assert ServeOptions(model="m", api_key=("a", "b")).api_key == ("a", "b")
    with pytest.raises(ValueError, match="empty"):
        ServeOptions(model="m", api_key=("a", ""))
