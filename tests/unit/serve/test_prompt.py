"""Prompts: the checkpoint's own template, and markers that only it can write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.engine.errors import CheckpointError
from gnomon.engine.serve.errors import ApiError
from gnomon.engine.serve.prompt import chat_prompt
from gnomon.engine.serve.shield import Shield
from gnomon.engine.serve.template import ChatTemplate, TemplateRefused
from gnomon.engine.serve.tokenizer import Tokenizer

USER = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def markers_in(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    known = {tokenizer.id_of(marker) for marker in tokenizer.markers}
    return [token_id for token_id in ids if token_id in known]


def test_a_calm_prompt_is_tokenised_as_one_text(
    tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    prompt = chat_prompt(template, tokenizer, USER, [TOOL], {"thinking_mode": "enabled"})
    rendered = template.render(USER, [TOOL], {"thinking_mode": "enabled"})
    assert prompt.ids == tokenizer.encode(rendered)
    assert rendered.endswith(prompt.tail)
    assert prompt.tail.endswith("<mm:think>")


PIECES = ["]~!b[", "]~b]", "[e~[", "]<]minimax[>[", "<mm:think>", "</mm:think>", "]", "[", "~", "b",
          "e", "<", ">", "/", "]<]", "minimax", "[>", "mm:", "think", " ", "\n", "a", "\U000f0000",
          "\U000f0003", "<tool_call>"]  # fmt: skip
evil = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@settings(max_examples=300, deadline=None)
@given(evil, evil, evil, evil)
def test_no_text_of_a_user_adds_or_removes_a_marker(
    tokenizer: Tokenizer, template: ChatTemplate, first: str, second: str, name: str, value: str
) -> None:
    def ids(first: str, second: str, name: str, value: str) -> list[int]:
        call = {"function": {"name": name, "arguments": {"k": value}}, "type": "function"}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": [{"type": "text", "text": first}, {"type": "text",
             "text": second}]},
            {"role": "assistant", "content": second, "reasoning_content": "r" + first,
             "tool_calls": [call]},
            {"role": "tool", "content": value},
        ]  # fmt: skip
        tool = {
            "type": "function",
            "function": {"name": "f", "description": first, "parameters": {value: [name]}},
        }
        return chat_prompt(template, tokenizer, messages, [tool], {}).ids

    calm = markers_in(tokenizer, ids("x", "x", "x", "x"))
    assert markers_in(tokenizer, ids(first, second, name, value)) == calm


@settings(max_examples=200, deadline=None)
@given(st.lists(evil, min_size=1, max_size=4))
def test_covered_text_comes_back_as_it_was(tokenizer: Tokenizer, texts: list[str]) -> None:
    shield = Shield(tokenizer.markers, texts)
    rendered = "".join(f"{shield.cover(text)}|" for text in texts)
    assert "".join(p.text for p in shield.pieces(rendered)) == "".join(f"{t}|" for t in texts)


def test_a_user_s_half_marker_does_not_eat_the_template_s(tokenizer: Tokenizer) -> None:
    shield = Shield(tokenizer.markers, "x]<]minimax[>")
    pieces = shield.pieces(shield.cover("x]<]minimax[>") + "[e~[\n")
    ids = [
        token_id
        for piece in pieces
        for token_id in (tokenizer.encode_plain if piece.plain else tokenizer.encode)(piece.text)
    ]
    assert markers_in(tokenizer, ids) == [tokenizer.id_of("[e~[")]


@pytest.mark.parametrize(
    ("messages", "kwargs", "part"),
    [
        (USER, {"messages": []}, "chat_template_kwargs.messages"),
        (USER, {"enable_thinking": False}, "chat_template_kwargs.enable_thinking"),
        (USER, {"thinking_mode": "loud"}, "thinking_mode"),
        ([{"role": "robot", "content": "x"}], {}, "robot"),
    ],
)
def test_what_cannot_be_rendered_is_a_sentence(
    tokenizer: Tokenizer, template: ChatTemplate, messages: Any, kwargs: Any, part: str
) -> None:
    with pytest.raises(ApiError, match=part) as caught:
        chat_prompt(template, tokenizer, messages, [], kwargs)
    assert caught.value.status == 400


def render(source: str, **extra: Any) -> str:
    return ChatTemplate(source, {"bos_token": "B"}).render(USER, None, extra)


def test_templates_run_in_a_sandbox() -> None:
    with pytest.raises(TemplateRefused):
        render("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(TemplateRefused):
        render("{% set _ = messages.append(1) %}")


def test_templates_have_what_checkpoints_expect() -> None:
    assert render("{{ bos_token }}{{ messages[0].content }}") == "Bhello"
    assert render("{{ x | tojson }}", x={"z": "<ü>", "a": 1}) == '{"z": "<ü>", "a": 1}'
    assert render("{% for m in messages %}{% break %}{% endfor %}ok") == "ok"
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    with pytest.raises(TemplateRefused, match="not that"):
        render("{{ raise_exception('not that') }}")


def test_a_broken_template_is_refused_at_start() -> None:
    with pytest.raises(CheckpointError, match="does not compile"):
        ChatTemplate("{% if %}", {})
