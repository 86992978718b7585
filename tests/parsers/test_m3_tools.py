"""Tool calls in MiniMax-M3's wire format, well formed and not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.parsers.replies import NS, TOOLS, block, element, invoke, read

from gnomon.engine.serve.parsers.base import ToolArgumentsDelta
from gnomon.engine.serve.parsers.m3_tools import M3Tools

HEADER = f'{NS}<invoke name="book_room">'

TYPED: dict[str, tuple[str, Any]] = {
    "string stays text, with its markup and newlines": (
        element("hotel", "Sole & Co <b>\n 3"),
        {"hotel": "Sole & Co <b>\n 3"},
    ),
    "a string that looks like a number": (element("hotel", "42"), {"hotel": "42"}),
    "empty string": (element("hotel"), {"hotel": ""}),
    "integer": (element("nights", "3"), {"nights": 3}),
    "integer with white space": (element("nights", "\n3 "), {"nights": 3}),
    "integer written as a float": (element("nights", "3.0"), {"nights": 3}),
    "not an integer": (element("nights", "three"), {"nights": "three"}),
    "number": (element("price", "-1.5e2"), {"price": -150.0}),
    "not a finite number": (element("price", "1e999"), {"price": "1e999"}),
    "boolean": (element("breakfast", "True"), {"breakfast": True}),
    "null": (element("note", "null"), {"note": None}),
    "a string that may be null": (element("note", "nullify"), {"note": "nullify"}),
    "union, first that fits": (element("either", "7"), {"either": 7}),
    "union, text": (element("either", "seven"), {"either": "seven"}),
    "a string in an enum": (element("view", "1"), {"view": "1"}),
    "array of items": (
        element("guests", element("item", "Ida"), element("item", "Bo")),
        {"guests": ["Ida", "Bo"]},
    ),
    "array of typed items": (
        element("ages", "\n", element("item", "4"), "\n", element("item", "5"), "\n"),
        {"ages": [4, 5]},
    ),
    "array as JSON": (element("guests", '["Ida", "Bo"]'), {"guests": ["Ida", "Bo"]}),
    "array of one bare value": (element("guests", "Ida"), {"guests": ["Ida"]}),
    "empty array": (element("guests"), {"guests": []}),
    "array by repeated tags": (
        element("guests", "Ida") + element("nights", "1") + element("guests", "Bo"),
        {"nights": 1, "guests": ["Ida", "Bo"]},
    ),
    "array of other names": (
        element("guests", element("guest", "Ida"), element("guest", "Bo")),
        {"guests": ["Ida", "Bo"]},
    ),
    "object by reference": (
        element("address", element("street", "Oak"), element("number", "7")),
        {"address": {"street": "Oak", "number": 7}},
    ),
    "object as JSON": (element("address", '{"number": 7}'), {"address": {"number": 7}}),
    "array of objects": (
        element("rooms", element("item", element("beds", "2")), element("item")),
        {"rooms": [{"beds": 2}, {}]},
    ),
    "array of one object, without the item": (
        element("rooms", element("beds", "2"), element("name", "A")),
        {"rooms": [{"beds": 2, "name": "A"}]},
    ),
    "broken JSON stays text": (element("address", '{"number": 7'), {"address": '{"number": 7'}),
    "JSON that is not JSON": (element("address", '{"a": NaN}'), {"address": '{"a": NaN}'}),
    "half a surrogate pair stays text": (
        element("address", r'{"a": "\ud800"}'),
        {"address": r'{"a": "\ud800"}'},
    ),
    "unknown parameter": (element("pets", "2"), {"pets": "2"}),
    "unknown parameter, repeated": (
        element("pets", "cat") + element("pets", "dog"),
        {"pets": ["cat", "dog"]},
    ),
    "unknown parameter, nested": (
        element("pets", element("cat", "1"), element("dog", "2"), element("dog", "3")),
        {"pets": {"cat": "1", "dog": ["2", "3"]}},
    ),
    "text and elements": (
        element("address", "at ", element("number", "7")),
        {"address": {"number": 7, "$text": "at "}},
    ),
    "a repeated scalar: the first counts": (
        element("nights", "1") + element("nights", "2"),
        {"nights": 1},
    ),
    "the namespace alone is text in a string": (
        element("hotel", f"a{NS}b"),
        {"hotel": f"a{NS}b"},
    ),
    "unknown tags are text in a string": (
        element("hotel", f"a{NS}<x>b{NS}</x>c"),
        {"hotel": f"a{NS}<x>b{NS}</x>c"},
    ),
    "no parameters": ("", {}),
}


@pytest.mark.parametrize(("inside", "arguments"), TYPED.values(), ids=TYPED)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_arguments_follow_the_schema(inside: str, arguments: Any, size: int) -> None:
    text = block(invoke("book_room", inside))
    found = read([text[i : i + size] for i in range(0, len(text), size)])
    assert found.calls[0][0] == "book_room"
    assert found.arguments == [arguments]
    assert found.complete == [True]
    assert found.content == ""


NIGHTS = element("nights", "3")
ONE = [("book_room", '{"nights": 3}')]

SHAPES: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "text before the block is content": ("Sure." + block(invoke("now")), "Sure.", [("now", "{}")]),
    "the newline before the block is wire format": (
        "Sure.\n" + block(invoke("now")),
        "Sure.",
        [("now", "{}")],
    ),
    "white space before the block is nothing": (" \n" + block(invoke("now")), "", [("now", "{}")]),
    "text after the block is content": (block(invoke("now")) + " Done", " Done", [("now", "{}")]),
    "several calls": (
        block(invoke("now"), invoke("book_room", NIGHTS)),
        "",
        [("now", "{}"), *ONE],
    ),
    "several blocks": (
        block(invoke("now")) + "\n" + block(invoke("now")),
        "",
        [("now", "{}"), ("now", "{}")],
    ),
    "single quotes": (f"{NS}<tool_call>{NS}<invoke name='now'>{NS}</invoke>{NS}</tool_call>",
                      "", [("now", "{}")]),
    "no quotes": (f"{NS}<tool_call>{NS}<invoke name=now>{NS}</invoke>{NS}</tool_call>",
                  "", [("now", "{}")]),
    "the first parameter's opener is missing": (
        block(f"{HEADER}{NS}3{NS}</nights>{element('hotel', 'x')}{NS}</invoke>"),
        "",
        [("book_room", '{"nights": 3, "hotel": "x"}')],
    ),
    "the first parameter's opener and its namespace are missing": (
        block(f"{HEADER}3{NS}</nights>{NS}</invoke>"), "", ONE,
    ),
    "the invoke lacks its bracket": (
        block(f'{NS}invoke name="book_room">{NIGHTS}{NS}</invoke>'), "", ONE,
    ),
    "an invoke outside a block": (invoke("book_room", NIGHTS), "", ONE),
    "a call of an unknown function": (block(invoke("fly", element("to", "1"))), "",
                                      [("fly", '{"to": "1"}')]),
    "the invoke's closer is missing": (f"{NS}<tool_call>{HEADER}{NIGHTS}{NS}</tool_call>", "", ONE),
    "the invoke's closer is missing, another follows": (
        f"{NS}<tool_call>{HEADER}{NIGHTS}{invoke('now')}{NS}</tool_call>",
        "",
        [*ONE, ("now", "{}")],
    ),
    "a parameter's closer is missing": (
        block(f"{HEADER}{NS}<hotel>x{NIGHTS}{NS}</invoke>"),
        "",
        [("book_room", '{"hotel": "x", "nights": 3}')],
    ),
    "a parameter's closer is missing at the end": (
        block(f"{HEADER}{NS}<nights>3{NS}</invoke>"), "", ONE,
    ),
    "a parameter's closer is misspelt": (
        block(f"{HEADER}{NS}<nights>3{NS}</night>{NS}</invoke>"), "", ONE,
    ),
    "all closers are missing": (f"{NS}<tool_call>{HEADER}{NIGHTS}", "", ONE),
    "a block without a call is content": (
        f"{NS}<tool_call>\nnothing{NS}</tool_call>",
        f"{NS}<tool_call>\nnothing{NS}</tool_call>",
        [],
    ),
    "an invoke without a name is content": (
        f"{NS}<tool_call>{NS}<invoke name=>{NS}</tool_call>",
        f"{NS}<tool_call>{NS}<invoke name=>{NS}</tool_call>",
        [],
    ),
    "after a malformed block the next call is read": (
        f"{NS}<tool_call>oops{NS}</tool_call>\n{block(invoke('now'))}",
        f"{NS}<tool_call>oops{NS}</tool_call>",
        [("now", "{}")],
    ),
    "text between calls is content": (
        block(invoke("now") + "and", invoke("now")),
        "and",
        [("now", "{}"), ("now", "{}")],
    ),
    "text between parameters is content": (
        block(invoke("book_room", "hm", NIGHTS)), "hm", ONE,
    ),
    "the namespace alone is content": (f"a {NS} b", f"a {NS} b", []),
    "M2's form is content": ("<tool_call><invoke name=x>", "<tool_call><invoke name=x>", []),
    "a call quoted inside a string": (
        block(invoke("book_room", element("hotel", block(invoke("now", NIGHTS))))),
        "",
        [("book_room", json.dumps({"hotel": block(invoke("now", NIGHTS))}))],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "content", "calls"), SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_block_gives_its_calls_and_the_rest_is_content(
    text: str, content: str, calls: list[tuple[str, str]], size: int
) -> None:
    found = read([text[i : i + size] for i in range(0, len(text), size)])
    assert (found.content, found.calls) == (content, calls)


TRUNCATED: dict[str, tuple[str, list[tuple[str, str]], list[bool]]] = {
    "before the first call": (f"{NS}<tool_call>\n{NS}<invoke na", [], []),
    "inside a marker": ("]<]minimax[", [], []),
    "inside a string": (
        f"{NS}<tool_call>{HEADER}{NS}<hotel>So",
        [("book_room", '{"hotel": "So"}')],
        [False],
    ),
    "inside an integer": (f"{NS}<tool_call>{HEADER}{NS}<nights>1", [("book_room", "{}")], [False]),
    "after a parameter": (f"{NS}<tool_call>{HEADER}{NIGHTS}", ONE, [False]),
    "inside the second call": (
        f"{NS}<tool_call>{invoke('now')}{HEADER}{NS}<ages>",
        [("now", "{}"), ("book_room", "{}")],
        [True, False],
    ),
    "after repeated tags": (
        f"{NS}<tool_call>{HEADER}{element('guests', 'Ida')}",
        [("book_room", '{"guests": ["Ida"]}')],
        [False],
    ),
}


@pytest.mark.parametrize(("text", "calls", "complete"), TRUNCATED.values(), ids=TRUNCATED)
@pytest.mark.parametrize("size", [1, 1000])
def test_a_truncated_call_is_valid_json_and_marked_incomplete(
    text: str, calls: list[tuple[str, str]], complete: list[bool], size: int
) -> None:
    found = read([text[i : i + size] for i in range(0, len(text), size)], truncated=True)
    assert (found.content, found.calls, found.complete) == ("", calls, complete)
    assert all(isinstance(arguments, dict) for arguments in found.arguments)


def test_an_unclosed_parameter_leaves_the_call_incomplete() -> None:
    found = read(f"{NS}<tool_call>{HEADER}{NS}<hotel>So")
    assert found.calls == [("book_room", '{"hotel": "So"}')]
    assert found.complete == [False]


def test_a_string_streams_while_it_arrives() -> None:
    parser = M3Tools(TOOLS)
    parser.feed(f"{NS}<tool_call>{HEADER}{NS}<hotel>")
    assert parser.feed("Sole ") == [ToolArgumentsDelta(0, '{"hotel": "Sole ')]
    assert parser.feed('"x"') == [ToolArgumentsDelta(0, '\\"x\\"')]


def test_elements_nest_to_a_limit_and_deeper_ones_are_text() -> None:
    deep = f"{NS}<a>" * 500 + "x" + f"{NS}</a>" * 500
    found = read(block(invoke("f", deep)))
    assert found.calls[0][0] == "f"
    assert found.arguments


def test_endless_references_in_a_schema_are_no_schema() -> None:
    schema = {"properties": {"a": {"$ref": "#/properties/a"}, "b": {"anyOf": [{"$ref": "#"}]}}}
    text = block(invoke("f", element("a", "1"), element("b", element("b", "2"))))
    assert read(text, tools={"f": schema}).arguments[0]["a"] == "1"
