"""The chat template's text, through the server's renderer and through transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import TemplateError
from transformers import AutoTokenizer

from gnomon.engine.models.presets.write import write_checkpoint
from gnomon.engine.serve.template import ChatTemplate, TemplateRefused

NS = "]<]minimax[>["
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint("nano", 0, tmp_path_factory.mktemp("template") / "model")


class Renderer:
    """Renders with both programs and insists that they agree."""

    def __init__(self, folder: Path) -> None:
        self.ours = ChatTemplate.load(folder)
        self.theirs = AutoTokenizer.from_pretrained(folder)

    def __call__(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        text = self.ours.render(messages, tools, extra)
        assert text == self.theirs.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True, **extra
        )
        return text


@pytest.fixture(scope="module")
def render(folder: Path) -> Renderer:
    return Renderer(folder)


def call(name: str, arguments: object) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(*calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **fields}


MODES = {
    "enabled": ("Think before you answer", "]~b]ai\n<mm:think>"),
    "disabled": ("without writing any reasoning", "]~b]ai\n</mm:think>"),
    "adaptive": ("You may think", "]~b]ai\n"),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_thinking_mode_has_a_sentence_and_a_prefix(render: Renderer, mode: str) -> None:
    sentence, ending = MODES[mode]
    text = render([USER], thinking_mode=mode)
    assert sentence in text.split("[e~[")[0]
    assert text.endswith("[e~[\n" + ending)


def test_the_default_mode_is_adaptive(render: Renderer) -> None:
    assert render([USER]) == render([USER], thinking_mode="adaptive")


def test_an_unknown_mode_is_refused(render: Renderer) -> None:
    with pytest.raises(TemplateRefused, match="enabled, disabled or adaptive, not loud"):
        render.ours.render([USER], None, {"thinking_mode": "loud"})
    with pytest.raises(TemplateError):
        render.theirs.apply_chat_template([USER], tokenize=False, thinking_mode="loud")


def test_the_document_begins_once_and_every_message_ends(render: Renderer) -> None:
    text = render(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": "Use metric units."},
            USER,
            {"role": "assistant", "content": "hello"},
            {"role": "user", "content": "more"},
        ]
    )
    assert text.count("]~!b[") == 1
    assert text.startswith("]~!b[]~b]system\n")
    assert text.split("[e~[\n")[1:] == [
        "]~b]system\nBe brief.",
        "]~b]developer\nUse metric units.",
        "]~b]user\nhi",
        "]~b]ai\nhello",
        "]~b]user\nmore",
        "]~b]ai\n",
    ]


def test_content_parts_are_joined_and_other_kinds_refused(render: Renderer) -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert "]~b]user\na b[e~[" in render([{"role": "user", "content": parts}])
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(TemplateRefused, match="image_url"):
        render.ours.render([{"role": "user", "content": image}], None, {})


def test_tools_are_listed_as_json_one_a_line(render: Renderer) -> None:
    functions = [
        {"name": "f", "description": "it's <é>", "parameters": {"type": "object"}},
        {"name": "g", "description": "", "parameters": {}},
    ]
    text = render([USER], [{"type": "function", "function": f} for f in functions])
    assert (
        "<tools>\n"
        '<tool>{"name": "f", "description": "it\'s <é>", "parameters": {"type": "object"}}</tool>\n'
        '<tool>{"name": "g", "description": "", "parameters": {}}</tool>\n'
        "</tools>"
    ) in text
    assert "<tools>" not in render([USER])


ARGUMENTS: dict[str, tuple[object, str]] = {
    "scalars": (
        {"s": "Sole & Co <b>", "n": 3, "x": 1.5, "yes": True, "no": False},
        f"{NS}<s>Sole & Co <b>{NS}</s>{NS}<n>3{NS}</n>{NS}<x>1.5{NS}</x>"
        f"{NS}<yes>true{NS}</yes>{NS}<no>false{NS}</no>",
    ),
    "null members are left out": ({"a": None, "b": {"c": None}}, f"{NS}<b>{NS}</b>"),
    "lists are items": (
        {"l": ["x", ["y"], None]},
        f"{NS}<l>{NS}<item>x{NS}</item>{NS}<item>{NS}<item>y{NS}</item>{NS}</item>"
        f"{NS}<item>null{NS}</item>{NS}</l>",
    ),
    "objects nest": (
        {"o": {"k": [{"z": 0}]}},
        f"{NS}<o>{NS}<k>{NS}<item>{NS}<z>0{NS}</z>{NS}</item>{NS}</k>{NS}</o>",
    ),
    "newlines are kept": ({"t": "a\n b\n"}, f"{NS}<t>a\n b\n{NS}</t>"),
    "no arguments": ({}, ""),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_take_the_wire_form(render: Renderer, case: str) -> None:
    arguments, expected = ARGUMENTS[case]
    text = render([USER, assistant(call("f", arguments)), {"role": "tool", "content": "ok"}])
    assert (
        f']~b]ai\n\n{NS}<tool_call>\n{NS}<invoke name="f">{expected}{NS}</invoke>\n'
        f"{NS}</tool_call>[e~[\n"
    ) in text


def test_arguments_as_a_string_are_refused(render: Renderer) -> None:
    with pytest.raises(TemplateRefused, match="must be a mapping"):
        render.ours.render([USER, assistant(call("f", '{"a": 1}'))], None, {})


def test_reasoning_text_and_calls_of_a_turn_come_back_in_order(render: Renderer) -> None:
    turn = assistant(call("f", {}), call("g", {}), content="Let me see.", reasoning_content="hm")
    text = render([USER, turn, {"role": "tool", "content": "1"}])
    assert (
        f"]~b]ai\n<mm:think>hm</mm:think>Let me see.\n{NS}<tool_call>\n"
        f'{NS}<invoke name="f">{NS}</invoke>\n{NS}<invoke name="g">{NS}</invoke>\n'
        f"{NS}</tool_call>[e~[\n"
    ) in text


def test_the_results_of_one_turn_share_a_message(render: Renderer) -> None:
    text = render(
        [
            USER,
            assistant(call("f", {}), call("g", {})),
            {"role": "tool", "tool_call_id": "c1", "content": "one"},
            {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "two"}]},
            {"role": "user", "content": "go on"},
        ]
    )
    assert (
        "]~b]tool\n<response>one</response>\n<response>two</response>[e~[\n]~b]user\ngo on" in text
    )


def test_an_unknown_role_is_refused(render: Renderer) -> None:
    with pytest.raises(TemplateRefused, match="unknown message role narrator"):
        render.ours.render([{"role": "narrator", "content": "x"}], None, {})
