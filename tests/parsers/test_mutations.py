"""Replies with nasty arguments, damaged anywhere: cut alike, valid JSON, and the next call is read.

The damage: text lost, repeated, and pieces of other calls in the middle.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.parsers.replies import block, element, invoke, read
from tests.parsers.test_dialects import HERMES, K2, K3, M2, closed, hermes, k2, k3, m2, opened, raw


def m3(*calls: tuple[str, dict[str, Any]]) -> str:
    def inside(value: Any) -> str:
        if isinstance(value, list):
            return "".join(element("item", inside(one)) for one in value)
        if isinstance(value, dict):
            return "".join(element(key, inside(one)) for key, one in value.items())
        return raw(value)

    return block(
        *(
            invoke(name, *(element(key, inside(value)) for key, value in arguments.items()))
            for name, arguments in calls
        )
    )


M3 = ("minimax_m3", "minimax_m3")
KINDS = {
    "m3": (M3, m3, "<mm:think>", "</mm:think>"),
    "m2": (M2, m2, "<think>", "</think>"),
    "k2": (K2, k2, "<think>", "</think>"),
    "k3": (K3, k3, opened("think"), closed("think")),
    "hermes": (HERMES, hermes, "<think>", "</think>"),
}
NASTY = (
    "<![CDATA[x]]>", "</", "</parameter", "<tool_call>", "</tool_call>", "]<]minimax[>[", "<",
    "<|tool_call_end|>", "<|close|>", '"', "\\", "\n", "é😀漢", '{"a":1}', "null", "true", "3",
    "[1,2]", " ", ">", "&amp;", "\u2028", "</think>", "<think>", "a", "b c",
)  # fmt: skip
NAMES = ("book_room", "now", "unknown.f")
KEYS = ("hotel", "nights", "guests", "note", "address", "rooms", "either", "q")


def value(rng: random.Random, depth: int = 2) -> Any:
    match rng.randrange(10 if depth else 7):
        case 0:
            return rng.randrange(-5, 1000)
        case 1:
            return rng.choice([True, None, 1.5])
        case 7 | 8:
            return [value(rng, depth - 1) for _ in range(rng.randrange(3))]
        case 9:
            keys = rng.sample(["a", "street", "item"], rng.randrange(3))
            return {key: value(rng, depth - 1) for key in keys}
        case _:
            return "".join(rng.choice(NASTY) for _ in range(rng.randrange(4)))


def damaged(kind: str, rng: random.Random) -> str:
    """A reply, whole or with a few wounds."""
    _, write, opener, closer = KINDS[kind]
    calls = [
        (rng.choice(NAMES), {key: value(rng) for key in rng.sample(KEYS, rng.randrange(4))})
        for _ in range(rng.randrange(1, 3))
    ]
    before = rng.choice(["", f"hm{closer}", f"{opener}hm{closer}", opener])
    text = before + rng.choice(["", "Hi ", "<b>"]) + write(*calls)
    text += rng.choice(["", "\nmore", write(calls[0])])
    other = write(("book_room", {"hotel": "x", "nights": 1}), ("now", {}))
    for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):
        at = rng.randrange(len(text) + 1)
        end, start = at + rng.randrange(1, 12), rng.randrange(len(other))
        piece = rng.choice([
            "", rng.choice([opener, closer, *NASTY]) + text[at:end], text[at:end] * 2,
            other[start : start + rng.randrange(1, 30)] + text[at:end],
        ])  # fmt: skip
        text = text[:at] + piece + text[end:]
    return text


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_a_damaged_reply_is_read_alike_however_it_is_cut(
    kind: str, seed: int, truncated: bool
) -> None:
    rng = random.Random(seed)
    dialect, _, opener, closer = KINDS[kind]
    text = damaged(kind, rng)
    if truncated:
        text = text[: rng.randrange(len(text) + 1)]
    prompt = rng.choice(["", opener, closer])
    places = sorted(rng.randrange(len(text) + 1) for _ in range(4))
    chunks = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    whole = read(text, prompt=prompt, truncated=truncated, dialect=dialect)
    assert read(list(text), prompt=prompt, truncated=truncated, dialect=dialect) == whole
    assert read(chunks, prompt=prompt, truncated=truncated, dialect=dialect) == whole
    for _, arguments in whole.calls:
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_was_damaged_the_next_call_is_read(kind: str, seed: int) -> None:
    dialect, write, opener, closer = KINDS[kind]
    rng = random.Random(seed)
    prompt = rng.choice(["", opener, closer])
    last = write(("now", {"last": "yes"}))
    text = damaged(kind, rng) + (closer if prompt == opener else "") + "\n" + last
    found = read(text, prompt=prompt, dialect=dialect)
    assert last in found.reasoning or ("now", {"last": "yes"}) in zip(
        (name for name, _ in found.calls), found.arguments, strict=True
    )


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('{"name": "now", "arguments": "no object"} ', '"no object"} '),
        ('{"name": "now", "argum}\n</tool_call>\n', ""),
        ('{"name": "now", "arguments": ": {}}\n</tool_call>\n', ""),
        ('{"nam null}}\n</tool_call>\n', "<tool_call>\n{"),
    ],
)
def test_a_hermes_string_that_never_ended_gives_back_the_call_it_swallowed(
    text: str, content: str
) -> None:
    last = '<tool_call>\n{"name": "now", "arguments": {"last": "yes"}}\n</tool_call>'
    found = read(f"<tool_call>\n{text}{last}", dialect=HERMES, reasoning=False)
    assert found.calls[-1] == ("now", '{"last": "yes"}')
    assert found.content.startswith(content)
    assert found.complete[-1]
    assert not any(found.complete[:-1])
