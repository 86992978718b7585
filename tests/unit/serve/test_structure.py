"""What requests demand of the form of an answer, and where it cannot be demanded."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.grammar.allowing import allows

from gnomon.engine.errors import GrammarTooSlow
from gnomon.engine.grammar.limits import Limits
from gnomon.engine.grammar.reply import Calls, Function, Json
from gnomon.engine.serve.conversation import offered_tools
from gnomon.engine.serve.errors import ApiError, from_engine
from gnomon.engine.serve.parsers.registry import reasoning_dialect
from gnomon.engine.serve.protocol.chat import Function as ChatFunction
from gnomon.engine.serve.protocol.chat import Tool
from gnomon.engine.serve.structure import (
    Choice,
    Structure,
    grammar_of,
    messages_format,
    read_choice,
    structure,
)

TOOLS = [Tool(type="function", function=ChatFunction(name=name)) for name in ("f", "g")]
LISTED = [{"type": "function", "function": {"name": "g"}}]
JSON = Structure(None, Json({"const": "a<b]<]c"}, "x"))
CALLS = Structure(Calls([Function("f", None, True, "x")], True, True), None)


@pytest.mark.parametrize(
    "value",
    [
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": LISTED}},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]},
    ],
    ids=["nested", "flat"],
)
def test_allowed_tools_are_read_in_both_spellings(value: dict[str, Any]) -> None:
    choice = read_choice(value, TOOLS)
    assert choice == Choice("auto", allowed=frozenset({"g"}))
    calls = structure(TOOLS, choice, None, None).calls
    assert calls is not None
    assert [function.name for function in calls.functions] == ["g"]
    assert calls.names == {"f", "g"}
    assert not calls.required
    assert len(offered_tools(TOOLS, value)) == 2  # the others stay in the prompt


def test_nothing_is_demanded_where_nothing_is_asked_for() -> None:
    assert structure(TOOLS, read_choice("auto", TOOLS), None, None).free
    assert structure(TOOLS, read_choice("none", TOOLS), False, None).free
    assert messages_format({"effort": None}, None) is None
    assert messages_format({"format": None}, {"type": "json_schema", "schema": {}}) is not None


def test_calls_that_are_not_parsed_cannot_be_enforced() -> None:
    with pytest.raises(ApiError, match="does not parse tool calls"):
        grammar_of(CALLS, "tail", None, "none", Limits())


@pytest.mark.parametrize("parser", ["none", "minimax_m3", "kimi_k3"])
def test_a_raw_prompt_is_answered_with_json_and_nothing_else(parser: str) -> None:
    source = grammar_of(JSON, "", None, parser, Limits())
    assert source is not None
    assert allows(source, '"a<b]<]c"')
    assert not allows(source, '\n"a<b]<]c"')


@pytest.mark.parametrize(
    ("tail", "before"),
    [("</think>", ""), ("<think>\n", "hm</think>"), ("ai\n", "<think>hm</think>"), ("ai\n", "")],
)
def test_where_an_answer_starts_follows_from_the_prompt(tail: str, before: str) -> None:
    source = grammar_of(CALLS, tail, reasoning_dialect("think"), "hermes", Limits())
    assert source is not None
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert allows(source, before + call)
    assert allows(source, call) is (before == "" or tail == "ai\n")


def test_a_request_that_was_ended_for_its_grammar_is_told_so() -> None:
    error = from_engine(GrammarTooSlow("took too long"))
    assert (error.status, error.code) == (400, "structure_too_slow")
