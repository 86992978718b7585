"""Whatever the grammar of a dialect allows, the dialect's parser reads back as it was meant."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from tests.parsers.replies import read
from tests.structured.schemas import CASES, INTEGER, NUMBER, STRING, obj, wrapped
from tests.structured.walk import walk
from tests.unit.grammar.allowing import allows

from gnomon.engine.grammar.dialects import DIALECTS, Thinking
from gnomon.engine.grammar.limits import Limits
from gnomon.engine.grammar.reply import Calls, Function, Json, Start, reply_grammar
from gnomon.engine.serve.parsers.registry import TOOLS, reasoning_dialect

# Which reasoning parser goes with which parser of calls.
REASONING = {"minimax_m2": "minimax_m2", "kimi_k2": "kimi_k2", "kimi_k3": "kimi_k3",
             "hermes": "think", "minimax_m3": "minimax_m3"}  # fmt: skip
SMALL = Limits(text=20, items=3)
NAMES = {name: CASES[name] for name in list(CASES)[::7]}


def thinking(dialect: str) -> Thinking:
    found = reasoning_dialect(REASONING[dialect])
    assert found is not None
    return Thinking(found.opener, found.closer, found.ends)


def grammar(
    dialect: str,
    calls: Calls | None,
    json: Json | None = None,
    start: Start = Start.CONTENT,
    limits: Limits = SMALL,
) -> str:
    return reply_grammar(start, calls, json, limits, DIALECTS[dialect], thinking(dialect))


def reply(dialect: str, text: str, tools: dict[str, Any], prompt: str | None = None) -> Any:
    prompt = thinking(dialect).closer if prompt is None else prompt
    whole = read(text, prompt=prompt, tools=tools, dialect=(dialect, REASONING[dialect]))
    cut = read(list(text), prompt=prompt, tools=tools, dialect=(dialect, REASONING[dialect]))
    assert cut == whole
    return whole


def check(schema: Any, value: Any) -> None:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind(schema, format_checker=kind.FORMAT_CHECKER).validate(value)


def test_every_parser_of_calls_has_a_grammar() -> None:
    assert DIALECTS.keys() == TOOLS.keys() == REASONING.keys()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dialect", ["minimax_m2", "kimi_k2", "kimi_k3", "hermes"])
def test_calls_come_back_as_they_were_written(dialect: str, name: str) -> None:
    schema, marks = NAMES[name], thinking(dialect)
    functions = [Function("f", schema, True, "x"), Function("g.h", None, True, "y")]
    at = len(name) % 3
    start, prompt = [
        (Start.CONTENT, marks.closer), (Start.REASONING, marks.opener), (Start.OPEN, ""),
    ][at]  # fmt: skip
    text = walk(grammar(dialect, Calls(functions, True, False), start=start), seed=len(name))
    found = reply(dialect, text, {"f": schema, "g.h": {}}, prompt)
    assert found.calls
    assert all(found.complete)
    assert not found.content.strip()
    for (function, _), arguments in zip(found.calls, found.arguments, strict=True):
        check(schema, arguments) if function == "f" else check({"const": {}}, arguments)
    if DIALECTS[dialect].tags is None:
        begin = re.escape("<|tool_call_argument_begin|>") + '|"arguments": '
        written = [json.JSONDecoder().raw_decode(part)[0]
                   for part in re.split(begin, text)[-len(found.calls):]]  # fmt: skip
        assert found.arguments == written


@pytest.mark.parametrize("name", list(NAMES)[::3])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_json_beside_calls_is_never_taken_for_one(dialect: str, name: str) -> None:
    either = Calls([Function("f", obj(a=STRING), False, "x")], False, False)
    text = walk(grammar(dialect, either, Json(NAMES[name], "y")), seed=len(name))
    found = reply(dialect, text, {"f": obj(a=STRING)})
    if not found.calls:
        check(NAMES[name], json.loads(found.content))


FREE = 'a "quoted" \\ line\nnext {1} é 😀 <b> & ] </'


@pytest.mark.parametrize("dialect", DIALECTS)
def test_strings_are_free_where_no_marker_begins(dialect: str) -> None:
    """A reply as the model would write it: the grammar allows it, the parser reads it back."""
    arguments = {"text": FREE, "n": 5}
    raw, quoted = FREE, json.dumps(FREE, ensure_ascii=False)
    value = f'{{"text": {quoted}, "n": 5}}'
    ns = "]<]minimax[>["
    text = {
        "minimax_m3": f'{ns}<tool_call>\n{ns}<invoke name="f">{ns}<text>{raw}{ns}</text>{ns}<n>5'
        f"{ns}</n>{ns}</invoke>\n{ns}</tool_call>",
        "minimax_m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="text">'
        f'{raw}</parameter>\n<parameter name="n">5</parameter>\n</invoke>\n</minimax:tool_call>',
        "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
        f"<|tool_call_argument_begin|>{value}<|tool_call_end|><|tool_calls_section_end|>",
        "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument '
        f'key="text" type="string"<|sep|>{raw}<|close|>argument<|sep|><|open|>argument key="n" '
        'type="integer"<|sep|>5<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        "hermes": f'<tool_call>\n{{"name": "f", "arguments": {value}}}\n</tool_call>',
    }[dialect]
    schema = obj(text=STRING, n=INTEGER)
    calls = Calls([Function("f", schema, True, "x")], True, False)
    assert allows(grammar(dialect, calls, limits=Limits()), text)
    found = reply(dialect, text, {"f": schema})
    assert found.arguments == [arguments]
    assert found.content == ""


@pytest.mark.parametrize("dialect", DIALECTS)
def test_one_call_where_one_is_asked_for(dialect: str) -> None:
    for seed in range(3):
        calls = Calls([Function("f", obj(n=NUMBER), True, "x")], True, True)
        found = reply(dialect, walk(grammar(dialect, calls), seed), {"f": obj(n=NUMBER)})
        assert len(found.calls) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
def test_under_auto_only_allowed_functions_are_called(dialect: str) -> None:
    functions = [Function("f", obj(n=INTEGER), True, "x"), Function("g", obj(a=STRING), False, "y")]
    source = grammar(dialect, Calls(functions, False, False, frozenset({"f", "g", "h"})))
    called = set()
    for seed in range(8):
        found = reply(dialect, walk(source, seed), {"f": obj(n=INTEGER), "g": obj(a=STRING)})
        called |= {name for name, _ in found.calls}
        for (name, _), arguments in zip(found.calls, found.arguments, strict=True):
            if name == "f":
                check(obj(n=INTEGER), arguments)
    assert called <= {"f", "g"}
    assert allows(grammar(dialect, Calls(functions, False, False), limits=Limits()), "Text only.")


def test_a_kimi_function_that_looks_prefixed_is_told_from_the_other() -> None:
    functions = [Function(name, None, True, "x") for name in ("f", "functions.f")]
    source = grammar("kimi_k2", Calls(functions, True, True))
    tools: dict[str, Any] = {"f": {}, "functions.f": {}}
    names = {reply("kimi_k2", walk(source, seed), tools).calls[0][0] for seed in range(8)}
    assert names == {"f", "functions.f"}


def test_unions_of_a_string_and_a_number_are_told_apart_by_their_types() -> None:
    schema = wrapped({"anyOf": [STRING, {"type": "integer", "minimum": 5, "maximum": 6}]})
    calls = Calls([Function("f", schema, True, "x")], True, True)
    kinds = set()
    for seed in range(12):
        found = reply("kimi_k3", walk(grammar("kimi_k3", calls), seed), {"f": schema})
        check(schema, found.arguments[0])
        kinds.add(type(found.arguments[0]["value"]))
    assert kinds == {str, int}
