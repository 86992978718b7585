"""Scores, choices and stop strings, without a server."""

from __future__ import annotations

import asyncio
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.engine.models.loader import resolve_model
from gnomon.engine.runner.scored import Logprobs
from gnomon.engine.scheduler.request import SamplingParams
from gnomon.engine.serve.accounts import Token, Usage
from gnomon.engine.serve.detokenizer import Detokenizer
from gnomon.engine.serve.generation import Generation, Tell, Transcript
from gnomon.engine.serve.parsers.base import ContentDelta, OutputParser, ReasoningDelta
from gnomon.engine.serve.parsers.m3_reasoning import M3ReasoningDialect
from gnomon.engine.serve.reasoning_format import Blocks
from gnomon.engine.serve.scores import LegacyScores, ScoreWriter
from gnomon.engine.serve.side_by_side import total
from gnomon.engine.serve.stops import StopStrings
from gnomon.engine.serve.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(resolve_model("nano"))


def test_minus_infinity_is_told_as_a_number_that_json_has(tokenizer: Tokenizer) -> None:
    scores = Logprobs(-math.inf, 9, (5,), (-math.inf,))
    writer = ScoreWriter(tokenizer)
    legacy = LegacyScores(writer)
    legacy.add(5, 0, scores)
    told = [writer.content([Token(5, 0, scores, False)]), writer.prompt([1, 5], [scores]),
            legacy.json()]  # fmt: skip
    text = json.dumps(told, allow_nan=False)
    assert text.count("-9999.0") == 5


def test_tokens_of_one_spelling_share_the_likelier_number(tokenizer: Tokenizer) -> None:
    legacy = LegacyScores(ScoreWriter(tokenizer))
    legacy.add(5, 0, Logprobs(-3.0, 3, (5, 5), (-1.0, -2.0)))
    assert legacy.json()["top_logprobs"] == [{tokenizer.decode([5]): -1.0}]


def test_entries_end_no_block_of_reasoning() -> None:
    token = Token(5, 0, None, True)
    blocks = Blocks(M3ReasoningDialect(), keep=False)
    told = blocks.take([ReasoningDelta("a"), token, Usage(1, 0, 1, 1), ReasoningDelta("b")])
    text = "".join(event.text for event in told if isinstance(event, ContentDelta))
    assert text == "<mm:think>ab"
    assert token in told


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 5), max_size=30),
)
@settings(max_examples=200, deadline=None)
def test_a_stop_string_that_is_included_ends_the_text(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    plain, included = StopStrings(stops), StopStrings(stops, include=True)
    shown, with_stop, at = "", "", 0
    for cut in [*cuts, len(text)]:
        shown += plain.feed(text[at : at + cut])
        with_stop += included.feed(text[at : at + cut])
        at += cut
    shown += plain.finish()
    with_stop += included.finish()
    assert with_stop == shown + (plain.found_stop or "")
    assert text.startswith(with_stop)


def job(**sampling: object) -> Generation:
    params = SamplingParams(max_tokens=4, **sampling)  # type: ignore[arg-type]
    return Generation("x", [1, 2], params, (), OutputParser(None, None), frozenset())


def test_choices_have_names_seeds_and_parsers_of_their_own() -> None:
    made = job(seed=2**63 - 2, prompt_logprobs=1).choices(3, shares_prompt=False)
    assert [one.id for one in made] == ["x-0", "x-1", "x-2"]
    assert [one.sampling.seed for one in made] == [2**63 - 2, 2**63 - 1, -(2**63)]
    assert [one.sampling.prompt_logprobs for one in made] == [1, None, None]
    assert len({id(one.parser) for one in made}) == 3
    assert [one.sampling.seed for one in job().choices(2, shares_prompt=True)] == [None, None]
    alone = job(seed=3)
    assert alone.choices(1, shares_prompt=True) == [alone]


def test_the_others_wait_for_the_first_even_if_it_fails() -> None:
    async def run() -> list[str]:
        first, second = job().choices(2, shares_prompt=True)
        order: list[str] = []

        async def steps(name: str, *, fails: bool):  # type: ignore[no-untyped-def]
            order.append(name)
            if fails:
                raise RuntimeError(name)
            yield name

        async def read(made: Generation, name: str, *, fails: bool) -> None:
            assert made.start is not None
            async for _ in made.start.steps(steps(name, fails=fails)):
                pass

        waiting = asyncio.create_task(read(second, "second", fails=False))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError):
            await read(first, "first", fails=True)
        await waiting
        return order

    assert asyncio.run(run()) == ["first", "second"]


def test_usage_counts_each_prompt_once() -> None:
    usages = [Usage(5, 1, 2, 1), Usage(5, 4, 3, 0), Usage(7, 0, 4, 0), Usage(7, 6, 5, 2)]
    assert total(usages, 2) == Usage(12, 1, 14, 3)
    assert total(usages, 1) == Usage(24, 11, 14, 3)


def test_every_token_is_told_before_its_text_with_its_offset(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("ab 漢字 cd")
    scores = [Logprobs(-float(at), 1) for at in range(len(ids))]
    transcript = Transcript(
        Detokenizer(tokenizer, frozenset()), StopStrings(()), OutputParser(None, None),
        Tell(tokens=True),
    )  # fmt: skip
    events = transcript.feed(ids, ended=False, scores=scores)
    tokens = [event for event in events if isinstance(event, Token)]
    assert [token.id for token in tokens] == ids
    assert [token.scores for token in tokens] == scores
    text = ""
    for event in events:
        if isinstance(event, Token):
            assert event.offset == len(text)
        elif isinstance(event, ContentDelta):
            text += event.text
    assert text == "ab 漢字 cd"
