"""However a reply is cut, the same comes out; and nothing that goes in breaks a parser."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.parsers.replies import NS, TOOLS, block, cuts, element, invoke, read

FRAGMENTS = [
    NS,
    f"{NS}<tool_call>",
    f"{NS}</tool_call>",
    f'{NS}<invoke name="book_room">',
    f'{NS}invoke name="now">',
    f"{NS}</invoke>",
    f"{NS}<hotel>",
    f"{NS}</hotel>",
    f"{NS}<nights>",
    f"{NS}</nights>",
    f"{NS}<guests>",
    f"{NS}</guests>",
    f"{NS}<item>",
    f"{NS}</item>",
    f"{NS}<address>",
    f"{NS}</address>",
    f"{NS}<",
    f"{NS}</",
    "]<]minimax[>",
    "]<]",
    "]",
    "<mm:think>",
    "</mm:think>",
    "<mm:",
    "null",
    "3",
    '"{}',
    "[1]",
    "\n",
    " ",
    ">",
    "é😀",
    "text",
]

documents = st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join)


@settings(max_examples=600, deadline=None)
@given(st.data(), documents, st.booleans(), st.sampled_from(["", "<mm:think>"]))
def test_any_cut_of_any_text_gives_the_same_reply(
    data: st.DataObject, text: str, truncated: bool, prompt: str
) -> None:
    chunks = data.draw(cuts(text))
    whole = read(text, truncated=truncated, prompt=prompt)
    assert read(chunks, truncated=truncated, prompt=prompt) == whole
    for _, arguments in whole.calls:
        assert isinstance(json.loads(arguments), dict)


words = st.text(st.characters(codec="utf-8", exclude_characters="]<"), max_size=12)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A well-formed invoke and the arguments it means."""
    inside, arguments = [], {}
    for key in draw(
        st.lists(st.sampled_from(["hotel", "nights", "guests", "address"]), unique=True)
    ):
        if key == "hotel":
            arguments[key] = draw(words)
            inside.append(element(key, arguments[key]))
        elif key == "nights":
            arguments[key] = draw(st.integers(-(10**9), 10**9))
            inside.append(element(key, str(arguments[key])))
        elif key == "guests":
            arguments[key] = draw(st.lists(words, min_size=1, max_size=3))
            inside.append(element(key, *(element("item", guest) for guest in arguments[key])))
        else:
            arguments[key] = {"street": draw(words), "number": draw(st.integers(0, 99))}
            address = arguments[key]
            inside.append(
                element(key, element("street", address["street"]),
                        element("number", str(address["number"])))
            )  # fmt: skip
    space = draw(st.sampled_from(["", "\n", "\n  "]))
    return invoke("book_room", space, space.join(inside), space), arguments


@settings(max_examples=300, deadline=None)
@given(st.data(), words, words, st.lists(calls(), min_size=1, max_size=3))
def test_a_well_formed_reply_means_what_it_says_however_it_is_cut(
    data: st.DataObject, reasoning: str, content: str, made: list[tuple[str, dict[str, Any]]]
) -> None:
    text = f"{reasoning}</mm:think>{content}{block(*(text for text, _ in made))}"
    found = read(data.draw(cuts(text)), prompt="<mm:think>", tools=TOOLS)
    assert found.reasoning == reasoning
    assert found.content == (content.removesuffix("\n") if content.strip() else "")
    assert found.arguments == [arguments for _, arguments in made]
    assert all(found.complete)


@settings(max_examples=200, deadline=None)
@given(st.lists(calls(), min_size=1, max_size=3), st.data())
def test_truncation_shows_no_fragment_of_a_marker(
    made: list[tuple[str, dict[str, Any]]], data: st.DataObject
) -> None:
    text = block(*(text for text, _ in made))
    cut = data.draw(st.integers(4, len(text)))
    found = read(text[:cut], truncated=True, prompt="</mm:think>")
    assert found.content == ""
    for (_, meant), arguments in zip(made, found.arguments, strict=False):
        assert set(arguments) <= set(meant)
