"""Usage is exact: prompts against jinja and tokenizers alone, replies against what was asked."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.prompts import Counter
from tests.contract.asking import CHAT, COMPLETIONS, RESPONSES, Asker, said
from tests.contract.features import TOOLS

SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief."}
THINK: dict[str, Any] = {"thinking_mode": "enabled"}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "And now?"},
]


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


CHATS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]] = {
    "a word": (user("Hello"), {}, {}),
    "nothing": (user(""), {}, {}),
    "multi-byte": (user("Ünïcode 漢字 😀 e\u0301"), {}, {}),
    "blanks": (user("  a\n\n\tb  "), {}, {}),
    "long": (user("word " * 300), {}, {}),
    "system": ([SYSTEM, *user("Hi")], {}, {}),
    "turns": (TALK, {}, {}),
    "system and turns": ([SYSTEM, *TALK], {}, {}),
    "tools": (user("Hi"), {"tools": TOOLS}, {}),
    "thinking": (user("Hi"), {"chat_template_kwargs": THINK}, THINK),
    "an effort": (user("Hi"), {"reasoning_effort": "high"}, THINK),
    "tools and thinking": (TALK, {"tools": TOOLS, "chat_template_kwargs": THINK}, THINK),
}
PROMPTS: dict[str, Any] = {
    "a word": "Hello",
    "multi-byte": "Ünïcode 漢字 😀",
    "markers": "]~b]user\nHi[e~[\n]~b]ai\n",
    "long": "word " * 300,
    "texts": ["a", "bc d", "漢字"],
    "ids": [5, 6, 7, 8],
    "lists of ids": [[5], [6, 7]],
}
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@STREAMED
@pytest.mark.parametrize("name", CHATS)
def test_prompt_tokens_of_a_chat_are_exact(
    asker: Asker, counter: Counter, name: str, stream: bool
) -> None:
    messages, fields, variables = CHATS[name]
    answer = asker.ask(CHAT, {"messages": messages, **fields}, stream=stream)
    usage = said(CHAT, answer, stream=stream).usage
    assert usage is not None
    assert usage["prompt_tokens"] == counter.chat(messages, fields.get("tools"), **variables)


@STREAMED
@pytest.mark.parametrize("name", [n for n, (_, fields, _) in CHATS.items() if not fields])
def test_input_tokens_of_a_response_are_those_of_the_chat(
    asker: Asker, counter: Counter, name: str, stream: bool
) -> None:
    messages = CHATS[name][0]
    answer = asker.ask(RESPONSES, {"input": messages}, stream=stream)
    usage = said(RESPONSES, answer, stream=stream).usage
    assert usage is not None
    assert usage["input_tokens"] == counter.chat(messages)


@STREAMED
@pytest.mark.parametrize("name", PROMPTS)
def test_prompt_tokens_of_a_completion_are_exact(
    asker: Asker, counter: Counter, name: str, stream: bool
) -> None:
    prompt = PROMPTS[name]
    prompts = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    answer = asker.ask(COMPLETIONS, {"prompt": prompt, "ignore_eos": True}, stream=stream)
    told = said(COMPLETIONS, answer, stream=stream)
    assert told.usage is not None
    assert told.usage["prompt_tokens"] == sum(
        counter.text(p) if isinstance(p, str) else len(p) for p in prompts
    )
    assert told.usage["completion_tokens"] == 8 * len(prompts)


@STREAMED
@pytest.mark.parametrize("tokens", [1, 2, 7, 65])
@pytest.mark.parametrize("path", [CHAT, RESPONSES, COMPLETIONS])
def test_a_reply_that_a_limit_cuts_has_exactly_as_many_tokens(
    asker: Asker, path: str, tokens: int, stream: bool
) -> None:
    cap = "max_output_tokens" if path == RESPONSES else "max_tokens"
    answer = asker.ask(path, {cap: tokens, "ignore_eos": True}, stream=stream)
    told = said(path, answer, stream=stream)
    assert told.usage is not None
    written = told.usage.get("completion_tokens", told.usage.get("output_tokens"))
    assert written == tokens
    assert told.finish == {0: "incomplete" if path == RESPONSES else "length"}


@STREAMED
def test_a_reply_that_a_stop_string_ends_counts_up_to_it(asker: Asker, stream: bool) -> None:
    fields = {"temperature": 0, "ignore_eos": True}
    texts = [
        said(COMPLETIONS, asker.ask(COMPLETIONS, {**fields, "max_tokens": n}, stream=False),
             stream=False).content[0]
        for n in range(1, 17)
    ]  # fmt: skip
    stop = texts[-1][len(texts[-1]) // 2 :][:2]
    first = next(n for n, text in enumerate(texts, start=1) if stop in text)
    change = {**fields, "max_tokens": 16, "stop": stop}
    told = said(COMPLETIONS, asker.ask(COMPLETIONS, change, stream=stream), stream=stream)
    assert told.content[0] == texts[-1][: texts[-1].index(stop)]
    assert told.finish == {0: "stop"}
    assert told.usage is not None
    assert told.usage["completion_tokens"] == first


def test_a_prompt_that_came_before_is_found_in_the_cache(asker: Asker) -> None:
    messages = user("A prefix of several blocks. " * 60)
    usages = [
        said(CHAT, asker.ask(CHAT, {"messages": messages, "max_tokens": n}, stream=False),
             stream=False).usage
        for n in (2, 3)
    ]  # fmt: skip
    assert usages[0] is not None
    assert usages[1] is not None
    assert usages[1]["prompt_tokens_details"]["cached_tokens"] >= 128
    assert usages[1]["prompt_tokens"] == usages[0]["prompt_tokens"]
