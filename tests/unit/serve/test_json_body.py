"""What bodies are JSON to the server, beyond what Python's reader asks for."""

from __future__ import annotations

import json

import pytest

from gnomon.engine.serve import json_body
from gnomon.engine.serve.errors import ApiError
from gnomon.engine.serve.json_body import read_body

REFUSED = {
    "a member twice": (b'{"a": {"b": 1, "c": 2, "b": 1}}', "'b' twice"),
    "a member spelled in two ways": (rb'{"a": 1, "\u0061": 2}', "'a' twice"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "UTF-8"),
    "UTF-16 without a mark": ('{"a": 1}'.encode("utf-16-le"), "property name"),
    "Latin-1": ('{"a": "é"}'.encode("latin-1"), "UTF-8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_body_that_two_readers_may_take_for_two_things_is_refused(name: str) -> None:
    body, said = REFUSED[name]
    with pytest.raises((ApiError, json.JSONDecodeError), match=said):
        read_body(body)


def test_a_byte_order_mark_is_passed_over() -> None:
    assert read_body(b'\xef\xbb\xbf{"a": "\xc3\xa9"}') == {"a": "é"}


def test_values_are_counted_outside_of_strings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "_MOST_CONTAINERS", 3)
    monkeypatch.setattr(json_body, "_MOST_VALUES", 3)
    quoted = r"[{,\"\\[{,\"" * 5
    assert read_body(f'{{"{quoted}": ["{quoted}"]}}'.encode())
    for body in (b"[[], [], []]", b'{"a": [1, 2, 3, 4, 5]}', b'["\\\\", [{}], [{}]]'):
        with pytest.raises(ApiError, match="more than 3"):
            read_body(body)


@pytest.mark.parametrize("body", [b'"' + rb"\"" * 200_000, b'"' * 200_001 + b"\\"])
def test_strings_that_never_end_hold_whatever_follows(body: bytes) -> None:
    with pytest.raises(json.JSONDecodeError):  # after one pass: from each quote takes minutes
        read_body(body + b"[" * 1_000_001)
