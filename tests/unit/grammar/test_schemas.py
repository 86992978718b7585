"""Which schemas are enforced, which are refused by name, and what they let through."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.structured.schemas import CASES, INTEGER, STRING, obj, wrapped
from tests.structured.walk import walk
from tests.unit.grammar.allowing import allows

from gnomon.engine.grammar.ebnf import GrammarTooLarge
from gnomon.engine.grammar.limits import Limits
from gnomon.engine.grammar.reply import (
    Calls,
    Function,
    Json,
    RequestUnsupported,
    Start,
    reply_grammar,
)
from gnomon.engine.serve.parsers.base import ToolArgumentsDelta, ToolCallEnd
from gnomon.engine.serve.parsers.m3_tools import M3Tools

SMALL = Limits(text=24, items=3)
NS = "]<]minimax[>["


def calls(schema: Any, **more: Any) -> Calls:
    return Calls(
        [Function("f", schema, True, "tools[0]")], **{"required": True, "single": True} | more
    )


def call(*elements: str) -> str:
    inside = "".join(elements)
    return f'{NS}<tool_call>\n{NS}<invoke name="f">{inside}{NS}</invoke>\n{NS}</tool_call>'


def element(key: str, value: str) -> str:
    return f"{NS}<{key}>{value}{NS}</{key}>"


def check(schema: Any, text: str) -> None:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind(schema, format_checker=kind.FORMAT_CHECKER).validate(json.loads(text))


@pytest.mark.parametrize("name", CASES)
def test_whatever_the_grammar_allows_comes_back_valid(name: str) -> None:
    schema = CASES[name]
    text = walk(reply_grammar(Start.CONTENT, calls(schema), None, SMALL), seed=len(name))
    parser = M3Tools({"f": schema})
    events = parser.feed(text) + parser.finish(truncated=False)
    assert events[-1] == ToolCallEnd(0, True)
    check(schema, "".join(e.text for e in events if isinstance(e, ToolArgumentsDelta)))


@pytest.mark.parametrize("name", list(CASES)[::3])
def test_json_that_the_grammar_allows_is_valid(name: str) -> None:
    schema = CASES[name]
    check(schema, walk(reply_grammar(Start.CONTENT, None, Json(schema, "x"), SMALL), seed=7))


REFUSED: dict[str, tuple[Any, str, str]] = {
    "not": ({"not": STRING}, "not", "properties.value"),
    "if": ({"if": STRING, "then": STRING}, "if", "properties.value"),
    "patternProperties": ({"type": "object", "patternProperties": {}}, "patternProperties", ""),
    "contains": ({"type": "array", "contains": STRING}, "contains", ""),
    "unique strings": ({"type": "array", "items": STRING, "uniqueItems": True}, "uniqueItems", ""),
    "look-ahead": ({"type": "string", "pattern": "^(?=a)b$"}, "pattern", "assert"),
    "back-reference": ({"type": "string", "pattern": r"^(a)\1$"}, "pattern", "groupref"),
    "word boundary": ({"type": "string", "pattern": r"^a\bc$"}, "pattern", "at"),
    "too many states": ({"type": "string", "pattern": "(a|b)*a(a|b){60}"}, "pattern", "states"),
    "nothing": ({"type": "string", "pattern": "a^"}, "pattern", "no text"),
    "too short": ({"type": "string", "pattern": "^abcd", "maxLength": 3}, "pattern", "no text"),
    "no pattern": ({"type": "string", "pattern": "("}, "pattern", "no regular expression"),
    "unknown format": ({"type": "string", "format": "color"}, "format", "'color'"),
    "fractional multiple": ({"type": "number", "multipleOf": 0.5}, "multipleOf", "whole"),
    "overlapping oneOf": ({"oneOf": [INTEGER, {"type": "number"}]}, "oneOf", "anyOf"),
    "no integer": ({"type": "integer", "minimum": 1.2, "maximum": 1.8}, "minimum", "no integer"),
    "empty enum": ({"enum": []}, "enum", "no value"),
    "enum of another type": ({"type": "string", "enum": [1]}, "enum", "no value"),
    "dangling reference": ({"$ref": "#/$defs/x"}, "$ref", "does not exist"),
    "remote reference": ({"$ref": "http://x/y"}, "$ref", "outside"),
    "endless reference": ({"$ref": "#/properties/value"}, "$ref", ""),
    "reference to an anchor": ({"$ref": "#name"}, "$ref", "path"),
    "object that must hold its like": ({"$ref": "#"}, "$ref", "without an end"),
    "lists that must hold their like": (
        {"type": "array", "minItems": 1, "items": {"$ref": "#/properties/value"}},
        "$ref", "without an end",
    ),
    "constant marker": ({"const": f"a{NS}"}, "const", "marker"),
    "too few items": ({"type": "array", "maxItems": 0, "minItems": 1}, "minItems", ""),
    "false": (False, "false", "no value"),
    "length as text": ({"type": "string", "minLength": "3"}, "minLength", "whole number"),
    "negative length": ({"type": "string", "maxLength": -1}, "maxLength", "whole number"),
    "type of types": ({"type": [3]}, "type", "type"),
    "properties as a list": ({"type": "object", "properties": []}, "properties", "schemas"),
    "anyOf of nothing": ({"anyOf": []}, "anyOf", "schemas"),
    "contradiction": ({"allOf": [STRING, INTEGER]}, "type", "no value"),
    "lengths that cross": ({"type": "string", "minLength": 3, "maxLength": 2}, "maxLength", ""),
    "members that cannot be": (
        {"type": "object", "additionalProperties": STRING, "minProperties": 2}, "minProperties", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_enforced_is_refused_by_name(name: str) -> None:
    schema, keyword, said = REFUSED[name]
    with pytest.raises(RequestUnsupported, match=f"'{keyword.replace('$', '.')}'") as caught:
        reply_grammar(Start.CONTENT, calls(wrapped(schema)), None, Limits())
    assert caught.value.keyword == keyword
    assert said in str(caught.value)


def test_a_reference_is_a_uri_fragment() -> None:
    schema = {
        **obj(value={"$ref": "#/$defs/%C3%A9~1%25%20b"}),
        "$defs": {"é/% b": {"enum": ["right"]}},
    }
    grammar = reply_grammar(Start.CONTENT, calls(schema), None, SMALL)
    assert allows(grammar, call(element("value", "right")))
    assert not allows(grammar, call(element("value", "wrong")))


def test_too_large_a_schema_is_refused() -> None:
    schema = obj(**{f"p{i}": {"enum": [f"{i}-{j}" for j in range(200)]} for i in range(400)})
    with pytest.raises(GrammarTooLarge):
        reply_grammar(Start.CONTENT, calls(schema), None, Limits())


STARTS = {
    (Start.REASONING, "hm</mm:think>"): True,
    (Start.REASONING, f"about {NS}<tool_call> </mm:think>\n\n"): True,
    (Start.REASONING, ""): False,
    (Start.CONTENT, ""): True,
    (Start.CONTENT, "\n"): True,
    (Start.CONTENT, "<mm:think>hm</mm:think>"): False,
    (Start.OPEN, ""): True,
    (Start.OPEN, "</mm:think>"): True,
    (Start.OPEN, "<mm:think>hm</mm:think>\n"): True,
    (Start.OPEN, "hm</mm:think>"): False,
}


@pytest.mark.parametrize(("start", "before"), STARTS)
def test_reasoning_comes_first_where_the_prompt_leaves_room(start: Start, before: str) -> None:
    source = reply_grammar(start, calls(obj(a=STRING)), None, Limits())
    assert allows(source, before + call(element("a", "x"))) is STARTS[start, before]


TEXT = f"a ]<b> ]] <{NS[1:]} \n é 😀"


def test_free_strings_may_hold_anything_but_a_marker() -> None:
    source = reply_grammar(Start.CONTENT, calls(obj(a=STRING)), None, Limits())
    assert allows(source, call(element("a", TEXT)))
    assert not allows(source, call(element("a", f"x {NS}<b>")))


def test_under_auto_text_is_free_and_strict_calls_are_not() -> None:
    strict = Function("f", obj(n=INTEGER), True, "tools[0]")
    loose = Function("g", obj(n=INTEGER), False, "tools[1]")
    source = reply_grammar(Start.CONTENT, Calls([strict, loose], False, False), None, Limits())
    assert allows(source, "Just text, with ]<] and <mm:think>.")
    assert allows(source, "First." + call(element("n", "3")))
    assert not allows(source, "First." + call(element("n", "three")))
    assert not allows(source, "First." + call())
    assert allows(source, call(element("n", "three")).replace('"f"', '"g"'))
    assert not allows(source, call(element("m", "3")).replace('"f"', '"g"'))
    assert not allows(source, f'{NS}<invoke name="f">')


@pytest.mark.parametrize("single", [False, True])
def test_parallel_calls_can_be_forbidden(single: bool) -> None:
    source = reply_grammar(Start.CONTENT, calls({}, single=single), None, Limits())
    one = f'{NS}<invoke name="f">{NS}</invoke>\n'
    assert allows(source, call())
    assert allows(source, f"{NS}<tool_call>\n{one}{one}{NS}</tool_call>") is not single


def test_json_or_a_call_where_both_are_possible() -> None:
    both = Calls([Function("f", obj(n=INTEGER), False, "x")], False, False)
    source = reply_grammar(Start.CONTENT, both, Json(obj(a=STRING), "y"), Limits())
    assert allows(source, '{"a": "b"}')
    assert allows(source, call(element("n", "1")))
    assert not allows(source, "text")


@given(
    low=st.decimals(-2000, 2000, places=3),
    width=st.decimals(0, 50, places=3),
    probe=st.decimals(-2100, 2100, places=4),
    ends=st.sampled_from(["minimum maximum", "exclusiveMinimum exclusiveMaximum"]),
)
@settings(max_examples=60, deadline=None)
def test_numbers_keep_their_bounds(low: Any, width: Any, probe: Any, ends: str) -> None:
    lower, upper = ends.split()
    schema = {"type": "number", lower: float(low), upper: float(low + width)}
    try:
        source = reply_grammar(Start.CONTENT, None, Json(schema, "x"), Limits())
    except RequestUnsupported:
        assert width == 0
        return
    for text in {f"{probe}", f"{low}", f"{low + width}", f"{low + width / 3:.3f}", f"{int(low)}"}:
        valid = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
        written = allows(source, text)
        assert valid or not written, text
        assert written or not valid or text.startswith("-0"), text
