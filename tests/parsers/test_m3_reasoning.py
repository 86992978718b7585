"""Reasoning is split from content by the state the prompt leaves and by nothing else."""

from __future__ import annotations

import pytest
from tests.parsers.replies import read

from gnomon.engine.serve.parsers.m3_reasoning import M3ReasoningDialect

OPEN, CLOSE = "<mm:think>", "</mm:think>"

CASES = {
    "enabled: the output has no opener": (OPEN, f"why{CLOSE}answer", "why", "answer"),
    "enabled: a repeated opener is dropped": (OPEN, f"{OPEN}why{CLOSE}answer", "why", "answer"),
    "enabled: no closer, all is reasoning": (OPEN, "only why", "only why", ""),
    "enabled: the opener may be followed by a newline": (OPEN + "\n", f"a{CLOSE}b", "a", "b"),
    "disabled: content": (CLOSE, "answer", "", "answer"),
    "disabled: one stray closer is dropped": (CLOSE, f"{CLOSE}answer", "", "answer"),
    "adaptive: opener": ("ai\n", f"{OPEN}why{CLOSE}answer", "why", "answer"),
    "adaptive: opener after white space": ("ai\n", f"\n {OPEN}why{CLOSE}answer", "why", "answer"),
    "adaptive: stray closer": ("ai\n", f"{CLOSE}answer", "", "answer"),
    "adaptive: exactly one stray closer": ("ai\n", f"{CLOSE}{CLOSE}x", "", f"{CLOSE}x"),
    "adaptive: plain content": ("ai\n", "answer", "", "answer"),
    "adaptive: leading white space is kept": ("ai\n", "\n\nanswer", "", "\n\nanswer"),
    "markers in the middle of content are text": ("ai\n", f"a {OPEN} b", "", f"a {OPEN} b"),
    "a prompt that only mentions the markers": (f"{OPEN}{CLOSE} ai\n", "answer", "", "answer"),
    "what looks like an opener": ("ai\n", "<mm:thin> air", "", "<mm:thin> air"),
    "what looks like a closer": (OPEN, f"a </mm:thing> b{CLOSE}c", "a </mm:thing> b", "c"),
    "nothing at all": ("ai\n", "", "", ""),
    "an empty block": ("ai\n", f"{OPEN}{CLOSE}answer", "", "answer"),
}


@pytest.mark.parametrize(("prompt", "text", "reasoning", "content"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_a_reply_splits_into_reasoning_and_content(
    prompt: str, text: str, reasoning: str, content: str, size: int
) -> None:
    found = read([text[i : i + size] for i in range(0, len(text), size)], prompt=prompt)
    assert (found.reasoning, found.content) == (reasoning, content)


def test_a_cut_off_marker_is_not_shown() -> None:
    assert read("thinking </mm:th", prompt=OPEN, truncated=True).reasoning == "thinking "
    assert read("<mm:thi", truncated=True).content == ""


def test_short_text_that_only_looks_like_a_marker_is_shown_at_the_end() -> None:
    assert read("a < b or c </", prompt=OPEN, truncated=True).reasoning == "a < b or c </"
    assert read("<mm:thi").content == "<mm:thi"


def test_history_with_the_block_inside_its_content_is_split() -> None:
    split = M3ReasoningDialect().split
    assert split(f"{OPEN}why{CLOSE}answer") == ("why", "answer")
    assert split("answer") == (None, "answer")
    assert split(f"{OPEN}never closed") == (None, f"{OPEN}never closed")
