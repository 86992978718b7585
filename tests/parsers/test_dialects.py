"""MiniMax M2, Kimi K2, Kimi K3 and Hermes: what each spelling means, well formed and not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.parsers.replies import TOOLS, Said, cuts, read

from gnomon.engine.serve.parsers.base import ToolCallStart
from gnomon.engine.serve.parsers.kimi_k2 import KimiK2Tools

M2 = ("minimax_m2", "minimax_m2")
K2 = ("kimi_k2", "kimi_k2")
K3 = ("kimi_k3", "kimi_k3")
HERMES = ("hermes", "think")
DIALECTS = {"m2": M2, "k2": K2, "k3": K3, "hermes": HERMES}

SB, SE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CB, CA, CE = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def m2(*calls: tuple[str, dict[str, Any]]) -> str:
    inner = "".join(
        f'<invoke name="{name}">\n'
        + "".join(f'<parameter name="{k}">{raw(v)}</parameter>\n' for k, v in args.items())
        + "</invoke>\n"
        for name, args in calls
    )
    return f"<minimax:tool_call>\n{inner}</minimax:tool_call>"


def raw(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def k2(*calls: tuple[str, dict[str, Any]]) -> str:
    made = (
        f"{CB}functions.{name}:{at}{CA}{json.dumps(args, ensure_ascii=False)}{CE}"
        for at, (name, args) in enumerate(calls)
    )
    return f"{SB}{''.join(made)}{SE}"


def opened(name: str) -> str:
    return f"<|open|>{name}<|sep|>"


def closed(name: str) -> str:
    return f"<|close|>{name}<|sep|>"


def k3(*calls: tuple[str, dict[str, Any]]) -> str:
    def argument(key: str, value: Any) -> str:
        kind = "string" if isinstance(value, str) else "object"
        return (
            f'{opened(f"""argument key="{key}" type="{kind}" """)}{raw(value)}{closed("argument")}'
        )

    made = (
        opened(f'call tool="{name}" index="{at}"')
        + "".join(argument(k, v) for k, v in args.items())
        + closed("call")
        for at, (name, args) in enumerate(calls)
    )
    return opened("tools") + "".join(made) + closed("tools")


def hermes(*calls: tuple[str, dict[str, Any]]) -> str:
    return "\n".join(
        "<tool_call>\n"
        + json.dumps({"name": name, "arguments": args}, ensure_ascii=False)
        + "\n</tool_call>"
        for name, args in calls
    )


WRITERS = {"m2": m2, "k2": k2, "k3": k3, "hermes": hermes}

CALL = ("book_room", {"hotel": "Sole & Co <b>\n]", "nights": 3, "guests": ["Ida", "Bo"]})
NOW: tuple[str, dict[str, Any]] = ("now", {})
JSON_CALL = [("now", '{"a": 1}')]

# dialect, reply, content, calls, whether each is whole
SHAPES: dict[str, tuple[tuple[str, str], str, str, list[tuple[str, str]], list[bool]]] = {
    "m2: text that looks like a call outside a block": (
        M2, 'a <invoke name="now"></invoke>', 'a <invoke name="now"></invoke>', [], [],
    ),
    "m2: a block without a call": (
        M2, "<minimax:tool_call>no</minimax:tool_call>",
        "<minimax:tool_call>no</minimax:tool_call>", [], [],
    ),
    "m2: markup in a value is text": (
        M2, m2(("book_room", {"hotel": "<b></i> <invoke <parameter name"})), "",
        [("book_room", '{"hotel": "<b></i> <invoke <parameter name"}')], [True],
    ),
    "m2: unquoted and single-quoted names": (
        M2,
        "<minimax:tool_call><invoke name=book_room><parameter name='nights'>3</parameter></invoke>"
        "</minimax:tool_call>",
        "", [("book_room", '{"nights": 3}')], [True],
    ),
    "m2: a missing closer of a parameter": (
        M2,
        '<minimax:tool_call><invoke name="book_room"><parameter name="hotel">Sole'
        '<parameter name="nights">3</invoke></minimax:tool_call>',
        "", [("book_room", '{"hotel": "Sole", "nights": 3}')], [True],
    ),
    "m2: a missing end of an invoke": (
        M2,
        '<minimax:tool_call><invoke name="now"><invoke name="now"></minimax:tool_call>',
        "", [("now", "{}"), ("now", "{}")], [True, True],
    ),
    "m2: text after the block": (M2, m2(NOW) + "\nbye", "\nbye", [("now", "{}")], [True]),
    "k2: no section around it": (
        K2, f"{CB}functions.now:3{CA}{{}}{CE}", "", [("now", "{}")], [True],
    ),
    "k2: no arguments": (K2, f"{SB}{CB}functions.now:0{CA}{CE}{SE}", "", [("now", "{}")], [True]),
    "k2: white space everywhere": (
        K2, f"{SB}\n {CB} functions.now:0 {CA} {{\"a\": 1}} \n{CE}\n{SE}", "", JSON_CALL, [True],
    ),
    "k2: a namespace": (K2, f"{CB}functions.clock.now:0{CA}{{}}{CE}", "", [("now", "{}")], [True]),
    "k2: an id without a number": (K2, f"{CB}now{CA}{{}}{CE}", "", [("now", "{}")], [True]),
    "k2: the end marker inside a string": (
        K2, f'{SB}{CB}functions.now:0{CA}{{"a": "{CE}{SE}{CB}"}}{CE}{SE}', "",
        [("now", f'{{"a": "{CE}{SE}{CB}"}}')], [True],
    ),
    "k2: a string that never ends": (
        K2, f'{SB}{CB}functions.now:0{CA}{{"a": "x{CE}{CB}functions.now:1{CA}{{"a": 1}}{CE}{SE}',
        "", [("now", f'{{"a": "x{CE}{CB}functions.now:1{CA}{{"}}'), *JSON_CALL], [False, True],
    ),
    "k2: a missing brace": (
        K2, f'{CB}functions.now:0{CA}{{"a": 1{CE}{CB}functions.now:1{CA}{{}}{CE}', "",
        [*JSON_CALL, ("now", "{}")], [True, True],
    ),
    "k2: arguments that are no object": (
        K2, f"{SB}{CB}functions.now:0{CA}[1]{CE}{SE}", "[1]", [("now", "{}")], [False],
    ),
    "k2: arguments that stop being JSON": (
        K2, f'{SB}{CB}functions.now:0{CA}{{"a": 1, oops}}{CE}{CB}functions.now:1{CA}{{}}{CE}{SE}',
        ", oops}", [*JSON_CALL, ("now", "{}")], [False, True],
    ),
    "k2: a call without a name": (
        K2, f"{SB}{CB} {CA}{{}}{CE}{SE}x", f"{CB} {CA}{{}}x", [], [],
    ),
    "k2: an empty section": (K2, f"{SB}{SE}", f"{SB}{SE}", [], []),
    "k2: a section without an end": (K2, f"a\n{SB}{CB}functions.now:0{CA}{{}}{CE}", "a",
        [("now", "{}")], [True]),
    "k3: channels around answer and calls": (
        K3, f"{opened('response')}Hi{closed('response')}{k3(NOW)}{closed('message')}", "Hi",
        [("now", "{}")], [True],
    ),
    "k3: only an answer": (K3, f"{opened('response')}Hi{closed('response')}", "Hi", [], []),
    "k3: an entity in an attribute": (
        K3, opened("tools") + opened('call tool="a&amp;b" index="0"')
        + opened('argument key="&quot;k" type="number"') + "2.5" + closed("argument")
        + closed("call") + closed("tools"),
        "", [("a&b", '{"\\"k": 2.5}')], [True],
    ),
    "k3: a string that looks like JSON": (
        K3, k3(("f", {"a": "[1]"})), "", [("f", '{"a": "[1]"}')], [True],
    ),
    "k3: JSON that is none stays text": (
        K3, k3(("f", {})).replace(closed("call"),
            opened('argument key="a" type="object"') + "{x" + closed("argument") + closed("call")),
        "", [("f", '{"a": "{x"}')], [True],
    ),
    "hermes: arguments before the name": (
        HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "now"}</tool_call>', "", JSON_CALL,
        [True],
    ),
    "hermes: parameters, and other members": (
        HERMES, '<tool_call>{"id": 7, "name": "now", "parameters": {"a": 1}}</tool_call>', "",
        JSON_CALL, [True],
    ),
    "hermes: arguments inside a string": (
        HERMES, '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', "",
        JSON_CALL, [True],
    ),
    "hermes: no arguments": (
        HERMES, '<tool_call>{"name": "now"}</tool_call>', "", [("now", "{}")], [True],
    ),
    "hermes: missing closers": (
        HERMES, '<tool_call>{"name": "now", "arguments": {"a": 1}</tool_call>', "", JSON_CALL,
        [True],
    ),
    "hermes: no end marker": (
        HERMES, '<tool_call>{"name": "now", "arguments": {"a": 1}}', "", JSON_CALL, [True],
    ),
    "hermes: markers in a string": (
        HERMES, '<tool_call>{"name": "now", "arguments": {"a": "</tool_call>"}}</tool_call>', "",
        [("now", '{"a": "</tool_call>"}')], [True],
    ),
    "hermes: a word about the marker": (
        HERMES, "use <tool_call> here </tool_call>", "use <tool_call> here </tool_call>", [], [],
    ),
    "hermes: no name": (
        HERMES, '<tool_call>{"a": 1}</tool_call>', '<tool_call>{"a": 1}</tool_call>', [], [],
    ),
    "hermes: after a malformed block the next is read": (
        HERMES, f"<tool_call>{{oops</tool_call>\n{hermes(NOW)}",
        "<tool_call>{oops</tool_call>", [("now", "{}")], [True],
    ),
    "hermes: a raw newline in a string": (
        HERMES, '<tool_call>{"name": "now", "arguments": {"a": "x\ny"}}</tool_call>', "",
        [("now", '{"a": "x\\ny"}')], [True],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "text", "content", "calls", "complete"), SHAPES.values(), ids=SHAPES
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_spelling_means_these_calls_and_the_rest_is_content(
    dialect: tuple[str, str],
    text: str,
    content: str,
    calls: list[tuple[str, str]],
    complete: list[bool],
    size: int,
) -> None:
    found = read([text[i : i + size] for i in range(0, len(text), size)], dialect=dialect)
    assert (found.content, found.calls, found.complete) == (content, calls, complete)


@pytest.mark.parametrize("kind", DIALECTS)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_text_then_calls(kind: str, size: int) -> None:
    text = "Let me look.\n\n" + WRITERS[kind](CALL, NOW)
    found = read([text[i : i + size] for i in range(0, len(text), size)], dialect=DIALECTS[kind])
    assert found.content.rstrip() == "Let me look."
    assert [name for name, _ in found.calls] == ["book_room", "now"]
    assert found.arguments == [CALL[1], {}]
    assert found.complete == [True, True]


def test_kimi_s_own_call_ids_are_kept() -> None:
    parser = KimiK2Tools(TOOLS)
    events = parser.feed(f"{CB}functions.now:12{CA}")
    assert events == [ToolCallStart(0, "now", "functions.now:12")]
    events = parser.feed(f"{{}}{CE}{CB}functions.now:12{CA}{{}}{CE}{CB}now{CA}{{}}{CE}")
    starts = [event for event in events if isinstance(event, ToolCallStart)]
    assert starts == [ToolCallStart(1, "now"), ToolCallStart(2, "now")]


REASONED = {
    "m2, prefilled": (M2, "<think>\n", "why</think>so", "why", "so"),
    "m2, written": (M2, "", "<think>why</think>so", "why", "so"),
    "k2, ended by its calls": (K2, "<think>", f"why{k2(NOW)}", "why", ""),
    "k3": (K3, opened("think"), f"why{closed('think')}{opened('response')}so", "why", "so"),
    "k3, not prefilled": (
        K3, "", f"{opened('think')}why{closed('think')}{opened('response')}so", "why", "so",
    ),
    "k3, never closed": (K3, opened("think"), f"why{opened('response')}so", "why", "so"),
    "hermes, no reasoning": (HERMES, "", "so </think>", "", "so </think>"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "prompt", "text", "reasoning", "content"), REASONED.values(), ids=REASONED
)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_reasoning_is_told_from_the_answer(
    dialect: tuple[str, str], prompt: str, text: str, reasoning: str, content: str, size: int
) -> None:
    chunks = [text[i : i + size] for i in range(0, len(text), size)]
    found = read(chunks, prompt=prompt, dialect=dialect)
    assert (found.reasoning, found.content) == (reasoning, content)


FRAGMENTS = {
    "m2": [
        "<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="book_room">',
        "<invoke name=", "</invoke>", '<parameter name="hotel">', '<parameter name="guests">',
        "<parameter name='nights'>", "</parameter>", "<minimax:", "</", "<", ">", "<think>",
        "</think>", '["a"]', "3", '"', "\n", " ", "é😀", "text",
    ],
    "k2": [
        SB, SE, CB, CA, CE, "functions.now:0", "now", "<|tool_call", "<|", "|>", "{", "}", '{"a": ',
        '"', "\\", "\\u00e", "\\ud83d\\ude00", "1", "1.5e", "tru", "true", "[", "]", ",", ":",
        "<think>", "</think>", "\n", " ", "é😀", "text",
    ],
    "k3": [
        opened("tools"), closed("tools"), opened('call tool="now" index="0"'), closed("call"),
        opened('argument key="a" type="string"'), opened('argument key="b" type="object"'),
        closed("argument"), opened("response"), closed("response"), closed("message"),
        opened("think"), closed("think"), "<|open|>", "<|close|>", "<|sep|>", "<|open|>call ",
        "<|", "{", '"x"', "1", "\n", " ", "é😀", "text",
    ],
    "hermes": [
        "<tool_call>", "</tool_call>", '{"name": "now"', '{"name": ', '"now"', ', "arguments": ',
        "{", "}", '{"a": 1}', '"{}"', '"', "\\", "null", "<tool", "</", "<", "[", "]", ",", ":",
        "<think>", "</think>", "\n", " ", "é😀", "text",
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", DIALECTS)
@settings(max_examples=400, deadline=None)
@given(data=st.data(), truncated=st.booleans())
def test_any_cut_of_any_text_gives_the_same_reply(
    kind: str, data: st.DataObject, truncated: bool
) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(FRAGMENTS[kind]), max_size=25)))
    prompt = data.draw(st.sampled_from(["", "<think>", opened("think")]))

    def said(chunks: str | list[str]) -> Said:
        return read(chunks, truncated=truncated, prompt=prompt, dialect=DIALECTS[kind])

    whole = said(text)
    assert said(data.draw(cuts(text))) == whole
    for _, arguments in whole.calls:
        assert isinstance(json.loads(arguments), dict)
        arguments.encode()


words = st.text(st.characters(codec="utf-8", exclude_characters="<|"), max_size=12)
values = st.one_of(
    words,
    st.integers(-(10**9), 10**9),
    st.booleans(),
    st.lists(words, max_size=3),
    st.dictionaries(words, st.integers(), max_size=2),
)
OPEN_TOOL = {"f": {"type": "object", "properties": {"s": {"type": "string"}}}}


@pytest.mark.parametrize("kind", ["k2", "k3", "hermes"])
@settings(max_examples=150, deadline=None)
@given(data=st.data(), content=words, made=st.lists(st.fixed_dictionaries(
    {"s": words}, optional={"v": values, "w": values}), min_size=1, max_size=3))  # fmt: skip
def test_a_well_formed_reply_means_what_it_says_however_it_is_cut(
    kind: str, data: st.DataObject, content: str, made: list[dict[str, Any]]
) -> None:
    text = content + WRITERS[kind](*(("f", arguments) for arguments in made))
    found = read(
        data.draw(cuts(text)), dialect=DIALECTS[kind], tools=OPEN_TOOL, reasoning=kind == "k3"
    )
    assert found.content == (content.removesuffix("\n") if content.strip() else "")
    assert found.arguments == made
    assert all(found.complete)


@pytest.mark.parametrize("kind", DIALECTS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_truncation_shows_no_fragment_of_a_marker(kind: str, data: st.DataObject) -> None:
    text = WRITERS[kind](CALL, NOW)
    cut = data.draw(st.integers(4, len(text)))
    found = read(text[:cut], truncated=True, dialect=DIALECTS[kind])
    assert found.content == ""
    for arguments in found.arguments:
        assert set(arguments) <= set(CALL[1])


@pytest.mark.parametrize("kind", DIALECTS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_comes_before_a_call_it_is_read(kind: str, data: st.DataObject) -> None:
    mess = "".join(data.draw(st.lists(st.sampled_from(FRAGMENTS[kind]), max_size=10)))
    if kind == "k2":  # a string may quote markers as long as it may still end
        mess = mess.replace("\\", "").replace('"', "")
    if kind == "hermes":
        mess = mess.replace("\\", "").replace('"', "")
    if kind in ("m2", "k3"):
        mess = mess.replace("<invoke name=", "").replace("<|open|>call ", "")
    found = read(mess + WRITERS[kind](("now", {})), dialect=DIALECTS[kind], reasoning=False)
    assert found.calls
    assert found.calls[-1] == ("now", "{}")
    assert found.complete[-1]
