from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gnomon.harness.replay.spec import GeneratedTraces, ReplaySpec
from gnomon.harness.replay.traces import (
    BLOCK_TOKENS,
    expected_requests,
    generate,
    write_traces,
)


@st.composite
def specs(draw: st.DrawFn) -> GeneratedTraces:
    low_in = draw(st.integers(256, 2000))
    low_out = draw(st.integers(2, 40))
    return GeneratedTraces(
        seed=draw(st.integers(0, 2**31)),
        sessions=draw(st.integers(1, 5)),
        turns=draw(st.integers(2, 12)),
        subagents=draw(st.booleans()),
        min_input_tokens=low_in,
        max_input_tokens=draw(st.integers(max(512, low_in), 6000)),
        min_output_tokens=low_out,
        max_output_tokens=draw(st.integers(low_out, 80)),
    )


def root_requests(trace: dict) -> list[dict]:
    return [r for r in trace["requests"] if r["type"] == "s"]


def subagents(trace: dict) -> list[dict]:
    return [r for r in trace["requests"] if r["type"] == "subagent"]


@settings(max_examples=60, deadline=None)
@given(specs())
def test_lengths_stay_within_the_spec(spec: GeneratedTraces) -> None:
    for trace in generate(spec):
        for request in expected_requests(trace):
            assert request.input_tokens <= spec.max_input_tokens
            assert spec.min_output_tokens <= request.output_tokens <= spec.max_output_tokens
        assert root_requests(trace)[0]["in"] >= min(
            spec.min_input_tokens, spec.max_input_tokens - 2 * BLOCK_TOKENS
        )


@settings(max_examples=60, deadline=None)
@given(specs())
def test_each_turn_extends_the_blocks_of_the_one_before(spec: GeneratedTraces) -> None:
    for trace in generate(spec):
        for stream in (root_requests(trace), *(s["requests"] for s in subagents(trace))):
            for before, after in pairwise(stream):
                shared = len(before["hash_ids"])
                assert after["hash_ids"][:shared] == before["hash_ids"]


@settings(max_examples=60, deadline=None)
@given(specs())
def test_hash_ids_cover_the_full_blocks_of_the_prompt_and_no_tail(spec: GeneratedTraces) -> None:
    for trace in generate(spec):
        for stream in (root_requests(trace), *(s["requests"] for s in subagents(trace))):
            for request in stream:
                assert len(request["hash_ids"]) == request["in"] // BLOCK_TOKENS
                assert request["in"] % BLOCK_TOKENS > 0


@settings(max_examples=60, deadline=None)
@given(specs())
def test_the_spec_knows_the_number_of_requests_beforehand(spec: GeneratedTraces) -> None:
    total = sum(len(list(expected_requests(trace))) for trace in generate(spec))
    assert total == spec.expected_requests


@settings(max_examples=60, deadline=None)
@given(specs())
def test_time_never_runs_backwards_and_a_parent_waits_for_its_subagent(
    spec: GeneratedTraces,
) -> None:
    for trace in generate(spec):
        free_at = 0.0
        for request in trace["requests"]:
            assert request["t"] >= free_at - 1e-2
            if request["type"] == "subagent":
                free_at = request["t"] + request["duration_ms"] / 1e3
            else:
                free_at = request["t"] + request["api_time"]


def test_a_subagent_has_a_context_of_its_own() -> None:
    for trace in generate(GeneratedTraces()):
        (agent,) = subagents(trace)
        roots = {i for r in root_requests(trace) for i in r["hash_ids"]}
        assert roots.isdisjoint({i for r in agent["requests"] for i in r["hash_ids"]})


def test_turns_end_in_tool_use_until_the_last() -> None:
    for trace in generate(GeneratedTraces()):
        stops = [r["stop"] for r in root_requests(trace)]
        assert stops == ["tool_use"] * (len(stops) - 1) + ["end_turn"]


def test_equal_specs_write_equal_files_and_another_seed_writes_others(tmp_path: Path) -> None:
    first = write_traces(GeneratedTraces(), tmp_path / "a")
    again = write_traces(GeneratedTraces(), tmp_path / "b")
    other = write_traces(GeneratedTraces(seed=8), tmp_path / "c")
    assert first.sha256 == again.sha256
    assert first.sha256 != other.sha256


def test_traces_are_not_written_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    with pytest.raises(FileExistsError, match="not empty"):
        write_traces(GeneratedTraces(), tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_input_tokens": 2000, "max_input_tokens": 1000},
        {"min_output_tokens": 30, "max_output_tokens": 20},
        {"turns": 1},
        {"unknown": 1},
    ],
)
def test_an_impossible_spec_is_refused(wrong: dict) -> None:
    with pytest.raises(ValidationError):
        GeneratedTraces(**wrong)


def test_the_longest_request_of_a_replay_is_known_before_it_runs() -> None:
    spec = ReplaySpec(traces=GeneratedTraces(max_input_tokens=1000, max_output_tokens=50))
    assert spec.longest_request_tokens == 1050
