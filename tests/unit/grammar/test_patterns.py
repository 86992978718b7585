"""Patterns as automata: they match what the expressions match, in one way, or are refused."""

from __future__ import annotations

import random
import re

import pytest
from benchmarks.grammar_fuzz import NASTY, Prober, anchored, documents
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.structured.walk import tokenizer
from tests.unit.grammar.allowing import allows

from gnomon.engine.grammar.automaton import MAX_STATES, Automaton
from gnomon.engine.grammar.classes import PatternUnsupported
from gnomon.engine.grammar.dialects import DIALECTS
from gnomon.engine.grammar.limits import Limits
from gnomon.engine.grammar.ranges import overlap
from gnomon.engine.grammar.regex import Pattern, Run
from gnomon.engine.grammar.reply import (
    Calls,
    Function,
    Json,
    RequestUnsupported,
    Start,
    reply_grammar,
)
from gnomon.engine.grammar.vocabulary import WRITTEN_MARKERS, token_bytes
from gnomon.engine.models.loader import resolve_model

texts = st.text(st.sampled_from('abcxyP09,@- é漢]"\\<\n_'), max_size=24)


def matches(form: Automaton | Run, text: str) -> bool:
    if isinstance(form, Run):
        inside = all(overlap(form.characters, [(ord(char), ord(char))]) for char in text)
        return inside and form.least <= len(text) and (form.most is None or len(text) <= form.most)
    state: int | None = 0
    for char in text:
        state = next(
            (to for to, ranges in form.edges[state or 0].items()
             if overlap(ranges, [(ord(char), ord(char))])), None,
        )  # fmt: skip
        if state is None:
            return False
    return state in form.final


@given(st.integers(0, 10**6), st.lists(texts, min_size=8, max_size=8))
@settings(max_examples=250, deadline=None)
def test_an_automaton_matches_what_its_expression_matches(seed: int, probes: list[str]) -> None:
    source = anchored(random.Random(seed))
    try:
        form = Pattern(source, source).form
    except PatternUnsupported:
        return
    for text in probes:
        # Python's $ also matches before a last line end, and its dot matches a return.
        found = re.search(source, text) is not None if not text.endswith("\n") else None
        if matches(form, text):
            assert re.search(source, text), (source, text)
        elif found and not {"é", "漢"} & {*text}:  # what dialects disagree on is left out
            pytest.fail(f"{source!r} matches {text!r}")


@pytest.mark.parametrize("source", NASTY)
def test_no_text_is_followed_in_two_ways(source: str) -> None:
    try:
        form = Pattern(source, source).form
    except PatternUnsupported as error:
        assert "states" in error.why  # noqa: PT017
        return
    if isinstance(form, Automaton):
        assert len(form.edges) <= MAX_STATES
        for row in form.edges:
            sets = list(row.values())
            assert not any(
                overlap(one, other) for at, one in enumerate(sets) for other in sets[at + 1 :]
            )


def test_what_would_take_too_many_states_is_refused() -> None:
    with pytest.raises(PatternUnsupported, match=f"more than {MAX_STATES} states"):
        _ = Pattern("(a|b)*a(a|b){60}", "a").form


@pytest.mark.parametrize(
    ("source", "inside", "outside"),
    [
        ("^a|b$", ["a", "axx", "xxb"], ["xa", "bx", ""]),
        ("^(a|b$)", ["ax", "b"], ["bx", "xa"]),
        ("(^|-)x", ["x", "a-x", "xyz"], ["ax"]),
        ("^$", [""], ["a"]),
        (r"^\D$", ["a", "é"], ["1", "٣"]),
        (r"^[^\d]$", ["a"], ["1", "٣"]),
        (r"^\d$", ["1"], ["٣", "a"]),
        (r"^\W$", ["-"], ["a", "é", "_"]),
        (r"^\S+$", ["aé漢"], ["a b", "a\u00a0b"]),
        (r"^(a*)*$", ["", "aaa"], ["ab"]),
        (r"^[a-z]{2,200}$", ["ab", "a" * 200], ["a", "a" * 201, "AB"]),
        (r"^.{0,90}$", ["", "x" * 90], ["x" * 91, "a\nb"]),
    ],
)
def test_anchors_and_classes_mean_what_both_dialects_mean(
    source: str, inside: list[str], outside: list[str]
) -> None:
    form = Pattern(source, source).form
    assert [text for text in inside if not matches(form, text)] == []
    assert [text for text in outside if matches(form, text)] == []


def test_lengths_beside_a_pattern_hold_together() -> None:
    form = Pattern("^(ab)*c?$", "", 3, 6).form
    found = [text for n in range(5) for text in ("ab" * n, "ab" * n + "c") if matches(form, text)]
    assert found == ["abc", "abab", "ababc", "ababab"]


def test_a_run_with_lengths_of_its_own_and_around_it_is_one_run() -> None:
    form = Pattern("^[a-c]+$", "", 5, 3000).form
    assert form == Run([(0x61, 0x63)], 5, 3000)
    assert Pattern("^(a{2,5000})$", "", 0, 90).form == Run([(0x61, 0x61)], 2, 90)
    with pytest.raises(PatternUnsupported, match="no text"):
        _ = Pattern("^a{100}$", "", 0, 90).form


def test_what_a_pattern_allows_is_spelled_as_json() -> None:
    schema = {"type": "string", "pattern": '^[\\]"\\\\<\\n]{5}$'}
    source = reply_grammar(Start.CONTENT, None, Json(schema, "x"), Limits())
    assert allows(source, '"\\u005d\\"\\\\<\\n"')
    assert not allows(source, '"\\u005d\\"\\\\<"')


def test_long_runs_are_counted_without_a_state_each() -> None:
    for words in ({"pattern": "^[a-f]{3,4000}$"}, {"minLength": 3, "maxLength": 4000}):
        source = reply_grammar(
            Start.CONTENT, None, Json({"type": "string", **words}, "x"), Limits()
        )
        assert len(source) < 2000
        for length in (2, 3, 4000, 4001):
            assert allows(source, f'"{"f" * length}"') is (3 <= length <= 4000)


@pytest.mark.parametrize("dialect", [*DIALECTS, "json"])
def test_random_schemas_compile_and_lead_into_no_dead_end(dialect: str) -> None:
    """The walk raises where a grammar allows nothing; refusals name their keyword."""
    tokens = token_bytes(resolve_model("nano"), tokenizer().size, WRITTEN_MARKERS)
    prober = Prober(tokens, tokenizer().id_of("[e~["))
    masks, refused = 0, set()
    for at, document in enumerate(documents(seed=9, cases=40)):
        calls = Calls([Function("f", document, True, "f")], True, True)
        wanted = (None, Json(document, "j")) if dialect == "json" else (calls, None)
        spoken = DIALECTS.get(dialect, DIALECTS["minimax_m3"])
        try:
            source = reply_grammar(Start.CONTENT, *wanted, Limits(), spoken)
        except RequestUnsupported as error:
            refused.add(error.keyword)
            continue
        grammar, _ = prober.compiled(source)
        masks += len(prober.masks(grammar, random.Random(at), 60, greedy=at % 3 == 0))
    assert masks > 500
    assert refused <= {"pattern", "maxLength"}
