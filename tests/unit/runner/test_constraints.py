"""Grammars compose with everything that happens to a request."""

from __future__ import annotations

import json
import time

import jsonschema
import pytest
from tests.structured.schemas import CASES, obj, wrapped
from tests.structured.walk import tokenizer

from gnomon.engine.errors import AdmissionError, GrammarTooSlow
from gnomon.engine.grammar import compiler
from gnomon.engine.grammar.limits import Limits
from gnomon.engine.grammar.reply import Json, Start, reply_grammar
from gnomon.engine.llm import LLM
from gnomon.engine.options import EngineOptions
from gnomon.engine.runner import constraints
from gnomon.engine.scheduler.request import FinishReason, SamplingParams

SCHEMAS = [wrapped(CASES[f"whole: {name}"]) if "value" not in name else CASES[name]
           for name in ("value: objects", "value: latitude", "value: map", "value: shapes",
                        "value: date-time", "value: strings", "value: sku")]  # fmt: skip
SOURCES = [
    reply_grammar(Start.CONTENT, None, Json(schema, "x"), Limits(12, 2)) for schema in SCHEMAS
]
PROMPTS = [tokenizer().encode(f"Give me value {at} of {'many ' * 40 * at}") for at in range(7)]


def engine(**options: object) -> LLM:
    defaults = {"max_model_len": 2048, "num_blocks": 64, "kv_cache_dtype": "fp32"}
    return LLM(EngineOptions(model="nano", **(defaults | options)))  # type: ignore[arg-type]


def sampling(seed: int, **more: object) -> SamplingParams:
    params = {
        "temperature": 1.0,
        "seed": seed,
        "max_tokens": 700,
        "top_p": 0.95 if seed % 2 else 1.0,
    }
    return SamplingParams(**(params | more))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def alone() -> list[tuple[int, ...]]:
    """Each constrained request by itself."""
    llm = engine(enable_prefix_caching=False)
    return [
        llm.generate([prompt], sampling(at), [source])[0].token_ids
        for at, (prompt, source) in enumerate(zip(PROMPTS, SOURCES, strict=True))
    ]


def test_what_comes_out_is_valid(alone: list[tuple[int, ...]]) -> None:
    for schema, ids in zip(SCHEMAS, alone, strict=True):
        jsonschema.validate(json.loads(tokenizer().decode(ids[:-1])), schema)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 64, "max_num_seqs": 3},
        {"num_blocks": 10, "max_model_len": 1280},
    ],
    ids=["one batch", "chunks", "preemption"],
)
def test_batches_chunks_hits_and_preemption_do_not_change_tokens(
    alone: list[tuple[int, ...]], options: dict[str, object]
) -> None:
    llm = engine(**options)
    free = tokenizer().encode("and a neighbour without a grammar")
    prompts = [prompt for pair in zip(PROMPTS, [free] * 7, strict=True) for prompt in pair]
    sources = [source for pair in zip(SOURCES, [None] * 7, strict=True) for source in pair]
    params = [
        sampling(at // 2) if at % 2 == 0 else sampling(at, max_tokens=150, ignore_eos=True)
        for at in range(14)
    ]
    for _ in range(2):  # the second time over a cache full of the first
        found = llm.generate(prompts, params, sources)
        assert [c.token_ids for c in found[::2]] == alone
    assert ("num_blocks" in options) == (llm.core.stats().preemptions_total > 0)


def test_a_token_limit_cuts_and_says_so() -> None:
    (cut,) = engine().generate([PROMPTS[0]], sampling(1, max_tokens=3), [SOURCES[0]])
    assert cut.finish_reason is FinishReason.LENGTH
    assert len(cut.token_ids) == 3


def test_what_does_not_compile_is_refused_and_nothing_is_left() -> None:
    llm = engine()
    with pytest.raises(AdmissionError, match="does not compile"):
        llm.generate([PROMPTS[0]], sampling(0), ["root ::= nothing"])
    with pytest.raises(AdmissionError, match="bytes"):
        llm.generate([PROMPTS[0]], sampling(0), ["x" * (compiler.MAX_SOURCE_BYTES + 1)])
    assert not llm.core.compiling
    assert not llm.core.has_work


def test_an_abort_reaches_a_request_that_waits_for_its_grammar() -> None:
    core = engine().core
    core.add("a", tuple(PROMPTS[0]), sampling(0), SOURCES[0])
    with pytest.raises(AdmissionError, match="already running"):
        core.add("a", tuple(PROMPTS[0]), sampling(0), SOURCES[0])
    assert core.abort("a")
    assert not core.abort("a")
    assert core.start_compiled() == []
    assert not core.has_work


def test_slow_compilation_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "COMPILE_TIMEOUT_S", 0.0)
    core = engine().core
    core.constraints._compiler._pool.submit(time.sleep, 0.5)  # the thread is busy
    core.add("a", tuple(PROMPTS[0]), sampling(0), SOURCES[0])
    ((request_id, error),) = core.start_compiled(wait=True)
    assert request_id == "a"
    assert "simplify" in str(error)
    assert not core.compiling


def test_the_cache_of_grammars_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_CACHED", 3)
    llm = engine()
    for at in range(5):
        source = reply_grammar(Start.CONTENT, None, Json(obj(**{f"p{at}": {"const": 1}}), "x"),
                               Limits())  # fmt: skip
        llm.generate([PROMPTS[0]], sampling(at), [source])
    count, size = llm.core.constraints._compiler.cached
    assert count == 3
    assert 0 < size < compiler.MAX_GRAMMAR_BYTES


def test_a_grammar_that_would_take_too_long_to_compile_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [f"^[a-{letter}]{{60}}[0-9]{{60}}$" for letter in "bcdefg"]
    schema = obj(**{word[3:5]: {"type": "string", "pattern": word} for word in words})
    source = reply_grammar(Start.CONTENT, None, Json(schema, "x"), Limits())
    assert compiler.work(source) >= 6 * 120
    monkeypatch.setattr(compiler, "MAX_WORK", 700 * tokenizer().size)
    with pytest.raises(AdmissionError, match="too long to compile"):
        engine().generate([PROMPTS[0]], sampling(0), [source])


def test_work_counts_classes_as_often_as_they_are_repeated() -> None:
    assert compiler.work('root ::= "[a-z]{9}" [a-z] [^"\\]]{0,5000} r1{40}') == 2
    assert compiler.work("root ::= [a-z]{2,40} | [\\]]{3} | [0-9]{7,}") == 40 + 3 + 7
    assert compiler.work("root ::= [a-z]{5000}") < 200


def test_a_grammar_whose_masks_are_slow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "MASK_BUDGET_S", 0.0)
    with pytest.raises(AdmissionError, match="ms a token to follow"):
        engine().generate([PROMPTS[0]], sampling(0), [SOURCES[0]])


def test_a_request_that_holds_up_the_others_is_ended_and_they_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = engine().core
    core.add("slow", tuple(PROMPTS[0]), sampling(0), SOURCES[0])
    core.add("free", tuple(PROMPTS[1]), sampling(1, max_tokens=20, ignore_eos=True))
    assert core.start_compiled(wait=True) == []
    monkeypatch.setattr(constraints, "MASK_BUDGET_S", 0.0)
    monkeypatch.setattr(constraints, "PATIENCE_S", 0.0)
    outputs = [output for _ in range(2) for output in core.step()]
    assert {output.id for output in outputs} == {"slow", "free"}
    ((request_id, error),) = core.start_compiled()
    assert request_id == "slow"
    assert isinstance(error, GrammarTooSlow)
    while core.has_work:
        outputs = [*core.step()]
        assert [output.id for output in outputs] == ["free"]
    assert outputs[0].finish_reason is FinishReason.LENGTH
    assert core.start_compiled() == []
    assert core.stats().blocks_used == 0
