"""Tokens to text and back, and where text stops."""

from __future__ import annotations

import json
import threading

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.parsers.replies import cuts

from gnomon.engine.errors import CheckpointError
from gnomon.engine.models.loader import resolve_model
from gnomon.engine.serve.detokenizer import Detokenizer
from gnomon.engine.serve.stops import StopStrings
from gnomon.engine.serve.tokenizer import Tokenizer

words = st.text(st.characters(codec="utf-8"), max_size=40)


@settings(deadline=None)
@given(words)
def test_any_text_comes_back_token_by_token(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(tokenizer, frozenset())
    pieces = [detokenizer.feed(token_id) for token_id in tokenizer.encode_plain(text)]
    assert "".join(pieces) == text


def test_a_long_prompt_leaves_the_other_threads_running(tokenizer: Tokenizer) -> None:
    """`Tokenizer.encode` of the library holds the GIL for seconds: every stream would stand."""
    beats = 0
    done = threading.Event()

    def beat() -> None:
        nonlocal beats
        while not done.wait(0.005):
            beats += 1

    other = threading.Thread(target=beat)
    other.start()
    tokenizer.encode("a few words " * 50_000)
    done.set()
    other.join()
    assert beats >= 5  # with the GIL held there is none, or one


@settings(deadline=None)
@given(st.data())
def test_any_tokens_give_whole_characters(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.size + 5), max_size=40))
    detokenizer = Detokenizer(tokenizer, frozenset())
    pieces = [detokenizer.feed(token_id) for token_id in ids]
    assert "\ufffd" not in "".join(pieces)
    assert tokenizer.decode(ids).startswith("".join(pieces))


def test_hidden_tokens_give_no_text(tokenizer: Tokenizer) -> None:
    end = tokenizer.id_of("[e~[")
    assert end is not None
    assert Detokenizer(tokenizer, {end}).feed(end) == ""
    assert Detokenizer(tokenizer, set()).feed(end) == "[e~["


def test_the_bytes_of_every_token_are_the_tokenizer_s_own(tokenizer: Tokenizer) -> None:
    source = (resolve_model("nano") / "tokenizer.json").read_text()
    reference = tokenizers.Tokenizer.from_str(source)
    for token_id in range(tokenizer.size):
        text = reference.decode([token_id], skip_special_tokens=False)
        if "\ufffd" not in text:
            assert tokenizer.bytes_of(token_id).decode() == text


def test_markers_count_only_where_they_may(tokenizer: Tokenizer) -> None:
    for marker in tokenizer.markers:
        marker_id = tokenizer.id_of(marker)
        assert tokenizer.encode(marker) == [marker_id]
        assert marker_id not in tokenizer.encode_plain(marker)
        assert tokenizer.decode(tokenizer.encode_plain(marker)) == marker


def test_a_tokenizer_that_is_not_byte_level_is_refused() -> None:
    source = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).to_str()
    with pytest.raises(CheckpointError, match="byte-level"):
        Tokenizer(source)


def test_a_vocabulary_that_merges_text_into_a_marker_is_refused() -> None:
    source = json.loads((resolve_model("nano") / "tokenizer.json").read_text())
    source["model"]["ignore_merges"] = True
    source["model"]["vocab"]["<"] = source["model"]["vocab"].pop("<")
    marker = {**source["added_tokens"][0], "content": "a"}
    source["added_tokens"] = [{**marker, "id": source["model"]["vocab"]["a"]}]
    with pytest.raises(CheckpointError, match="could not be told"):
        Tokenizer(json.dumps(source))


STOPS = {
    "in one token": (["STOP"], "one STOP two", "one ", True),
    "none": ([], "one STOP two", "one STOP two", False),
    "not found": (["never"], "one nev two", "one nev two", False),
    "the first that is complete counts": (["b", "abc"], "xabcx", "xa", True),
    "at the start": (["x"], "xy", "", True),
    "held back to the end": (["ends"], "it end", "it end", False),
    "characters of several bytes": (["é😀"], "aé😀b", "a", True),
}


@pytest.mark.parametrize(("stops", "text", "shown", "found"), STOPS.values(), ids=STOPS)
def test_text_ends_before_a_stop_string(
    stops: list[str], text: str, shown: str, found: bool
) -> None:
    for chunks in ([text], list(text)):
        matcher = StopStrings(stops)
        said = "".join(matcher.feed(chunk) for chunk in chunks) + matcher.finish()
        assert (said, matcher.found) == (shown, found)


letters = st.text("abc", max_size=30)


@settings(max_examples=300, deadline=None)
@given(st.data(), letters, st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_stop_strings_do_not_depend_on_how_text_arrives(
    data: st.DataObject, text: str, stops: list[str]
) -> None:
    matcher = StopStrings(stops)
    said = "".join(matcher.feed(chunk) for chunk in data.draw(cuts(text))) + matcher.finish()
    slow = StopStrings(stops)
    assert said == "".join(map(slow.feed, text)) + slow.finish()
    assert matcher.found == any(stop in text for stop in stops)
    if matcher.found:
        assert not any(stop in said for stop in stops)
        assert any(text.startswith(said + stop) for stop in stops)
    else:
        assert said == text
