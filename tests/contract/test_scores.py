"""Log probabilities, choices and usage as it grows: what they say, whole and streamed."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tests.clients.servers import ScriptedServer
from tests.contract.asking import CHAT, COMPLETIONS, RESPONSES, Asker, packets, said
from tests.contract.features import TOOLS

STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def choices(asker: Asker, path: str, change: dict[str, Any], *, stream: bool) -> list[list[Any]]:
    """The parts of each choice: one if whole, its packets if streamed."""
    answer = asker.ask(path, change, stream=stream)
    assert answer.status_code == 200, answer.text
    assert "Infinity" not in answer.text
    assert "NaN" not in answer.text
    found: dict[int, list[Any]] = {}
    for part in packets(answer).events if stream else (answer.json(),):
        for choice in part["choices"]:
            found.setdefault(choice["index"], []).append(choice)
    return [found[index] for index in range(len(found))]


def entries(parts: list[Any]) -> list[Any]:
    return [entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]]


CHATS: dict[str, dict[str, Any]] = {
    "plain": {"max_tokens": 24},
    "greedy": {"max_tokens": 24, "temperature": 0, "ignore_eos": True},
    "reasoning": {"reasoning_effort": "high", "max_tokens": 24},
    "tools": {"tools": TOOLS, "max_tokens": 24},
    "required": {"tools": TOOLS, "tool_choice": "required", "max_tokens": 200},
    "JSON": {"response_format": {"type": "json_object"}, "max_tokens": 100},
    "a stop": {"stop": ["e"], "max_tokens": 24},
    "penalties": {"repetition_penalty": 2.0, "logit_bias": {"300": 100}, "max_tokens": 6},
    "two": {"n": 2, "max_tokens": 12},
}


@STREAMED
@pytest.mark.parametrize("name", CHATS)
def test_every_generated_token_of_a_chat_has_its_entry(
    asker: Asker, name: str, stream: bool
) -> None:
    change = {**CHATS[name], "logprobs": True, "top_logprobs": 3, "return_token_ids": True}
    answer = asker.ask(CHAT, change, stream=stream)
    usage = said(CHAT, answer, stream=stream).usage
    assert usage is not None
    found = choices(asker, CHAT, change, stream=stream)
    assert sum(len(entries(parts)) for parts in found) == usage["completion_tokens"]
    for parts in found:
        ids = [token_id for part in parts for token_id in part["token_ids"]]
        assert len(entries(parts)) == len(ids)
        for entry in entries(parts):
            check_entry(entry)
            top = [one["logprob"] for one in entry["top_logprobs"]]
            assert len(top) == 3
            assert top == sorted(top, reverse=True)
            assert entry["logprob"] <= top[0]
            assert all(map(check_entry, entry["top_logprobs"]))


def check_entry(entry: dict[str, Any]) -> bool:
    assert -9999.0 <= entry["logprob"] <= 0
    raw = bytes(entry["bytes"])
    try:
        assert entry["token"] == raw.decode()
    except UnicodeDecodeError:
        assert entry["token"] == "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
    return True


@pytest.mark.parametrize("name", CHATS)
def test_a_stream_has_the_entries_of_the_whole_answer(asker: Asker, name: str) -> None:
    change = {**CHATS[name], "logprobs": True, "top_logprobs": 3, "return_token_ids": True}
    whole = choices(asker, CHAT, change, stream=False)
    streamed = choices(asker, CHAT, change, stream=True)
    assert list(map(entries, streamed)) == list(map(entries, whole))


def test_the_bytes_of_the_entries_are_the_text(asker: Asker) -> None:
    change = {"max_tokens": 24, "ignore_eos": True, "logprobs": True, "skip_special_tokens": False}
    ((choice,),) = choices(asker, CHAT, change, stream=False)
    raw = b"".join(bytes(entry["bytes"]) for entry in entries([choice]))
    assert choice["message"]["content"] == raw.decode(errors="ignore")


def test_deltas_carry_the_entries_of_their_tokens(asker: Asker) -> None:
    change = {"max_tokens": 24, "ignore_eos": True, "logprobs": True, "skip_special_tokens": False}
    (parts,) = choices(asker, CHAT, change, stream=True)
    raw, text = b"", ""
    for part in parts:
        raw += b"".join(bytes(entry["bytes"]) for entry in entries([part]))
        text += part["delta"].get("content") or ""
        if part["finish_reason"] is None:
            assert text == raw.decode(errors="ignore")


@STREAMED
@pytest.mark.parametrize(
    "prompt", ["Say hello to the world.", "Ünïcode 漢字 😀", [5, 6, 2041, 300]]
)
@pytest.mark.parametrize("echo", [False, True])
def test_a_completion_s_tokens_are_at_their_offsets(
    asker: Asker, prompt: Any, echo: bool, stream: bool
) -> None:
    change = {"prompt": prompt, "logprobs": 2, "echo": echo, "max_tokens": 12,
              "ignore_eos": True, "skip_special_tokens": False}  # fmt: skip
    (parts,) = choices(asker, COMPLETIONS, change, stream=stream)
    text = "".join(part["text"] for part in parts)
    told = [part["logprobs"] for part in parts if part["logprobs"]]
    tokens, numbers, top, offsets = (
        [entry for scores in told for entry in scores[name]]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    )
    assert len(tokens) == len(numbers) == len(top) == len(offsets)
    assert offsets == sorted(offsets)
    assert (numbers[0] is None) == (top[0] is None) == echo
    assert None not in numbers[1:]
    for token, number, others, offset in zip(tokens, numbers, top, offsets, strict=True):
        if not token.startswith("bytes:"):
            assert text[offset:].startswith(token) or token not in text
        if number is not None:
            assert others[token] == number
            assert 2 <= len(others) <= 3
    if isinstance(prompt, str) and echo:
        assert text.startswith(prompt)


@STREAMED
def test_an_echoed_answer_scores_as_it_did_when_it_was_written(asker: Asker, stream: bool) -> None:
    prompt = [5, 6, 7, 300, 301] * 30
    asked = {"prompt": prompt, "max_tokens": 20, "temperature": 0, "ignore_eos": True,
             "logprobs": 1, "return_token_ids": True}  # fmt: skip
    ((written,),) = choices(asker, COMPLETIONS, asked, stream=False)
    ids = [*prompt, *written["token_ids"]]
    for user in ("a", "b"):  # its blocks are in the prefix cache by then
        change = {"prompt": ids, "max_tokens": 0, "logprobs": 1, "echo": True, "user": user}
        (parts,) = choices(asker, COMPLETIONS, change, stream=stream)
        told = [n for p in parts if p["logprobs"] for n in p["logprobs"]["token_logprobs"]]
        assert told[len(prompt) :] == written["logprobs"]["token_logprobs"]


@STREAMED
def test_prompt_logprobs_have_the_token_its_rank_and_the_best(asker: Asker, stream: bool) -> None:
    ids = [5, 6, 7, 300, 301]
    change = {"prompt": ids, "prompt_logprobs": 2, "max_tokens": 1}
    (parts,) = choices(asker, COMPLETIONS, change, stream=stream)
    told = parts[0]["prompt_logprobs"]
    assert told[0] is None
    for token_id, entry in zip(ids[1:], told[1:], strict=True):
        mine = entry.pop(str(token_id))
        ranks = sorted(one["rank"] for one in entry.values())
        assert ranks == ([1, 2] if mine["rank"] > 2 else [3 - mine["rank"]])


def test_choices_differ_and_the_first_is_the_answer_with_one(asker: Asker) -> None:
    change = {"max_tokens": 12, "ignore_eos": True, "temperature": 1.0}
    one = said(CHAT, asker.ask(CHAT, change, stream=False), stream=False)
    four = said(CHAT, asker.ask(CHAT, {**change, "n": 4}, stream=False), stream=False)
    next_seed = said(CHAT, asker.ask(CHAT, {**change, "seed": 6}, stream=False), stream=False)
    assert four.content[0] == one.content[0]
    assert four.content[1] == next_seed.content[0]
    assert len(set(four.content.values())) == 4
    assert four.usage is not None
    assert one.usage is not None
    assert four.usage["prompt_tokens"] == one.usage["prompt_tokens"]
    assert four.usage["completion_tokens"] == 48


@STREAMED
def test_choices_of_a_list_of_prompts_count_on(asker: Asker, stream: bool) -> None:
    prompts = ["one", "another prompt"]
    change = {"prompt": prompts, "n": 2, "max_tokens": 3, "ignore_eos": True}
    both = said(COMPLETIONS, asker.ask(COMPLETIONS, change, stream=stream), stream=stream)
    assert sorted(both.content) == [0, 1, 2, 3]
    alone = [
        said(COMPLETIONS, asker.ask(COMPLETIONS, {**change, "prompt": prompt}, stream=stream),
             stream=stream)
        for prompt in prompts
    ]  # fmt: skip
    texts = [told.content[index] for told in alone for index in (0, 1)]
    assert [both.content[index] for index in range(4)] == texts
    usages = [told.usage for told in (*alone, both)]
    assert usages[0]["prompt_tokens"] + usages[1]["prompt_tokens"] == usages[2]["prompt_tokens"]  # type: ignore[index]
    assert usages[2]["completion_tokens"] == 12  # type: ignore[index]


def prefix_cache(asker: Asker) -> tuple[float, float]:
    """Prompt tokens looked up and found so far."""
    text = asker.http.get("/metrics").text
    names = ("prefix_cache_queries", "prefix_cache_hits")
    queries, hits = (
        re.search(rf"^\S*{name}_total\S* (\S+)$", text, re.MULTILINE) for name in names
    )
    assert queries is not None
    assert hits is not None
    return float(queries[1]), float(hits[1])


def test_choices_share_the_blocks_of_their_prompt(asker: Asker) -> None:
    before = prefix_cache(asker)
    change = {"prompt": list(range(10, 10 + 640)), "n": 6, "max_tokens": 2, "ignore_eos": True}
    assert asker.ask(COMPLETIONS, change, stream=False).status_code == 200
    after = prefix_cache(asker)
    assert (after[0] - before[0], after[1] - before[1]) == (6 * 640, 5 * 512)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_usage_grows_with_every_packet_to_what_it_is_in_the_end(asker: Asker, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    change = {"stream_options": options, "ignore_eos": True, "n": 2, "max_tokens": 6}
    events = packets(asker.ask(path, change, stream=True)).events
    assert all(event["usage"] for event in events)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 12
    assert len({event["usage"]["prompt_tokens"] for event in events}) == 1
    assert [bool(event["choices"]) for event in events[-2:]] == [True, False]


@STREAMED
def test_text_of_a_response_has_the_entries_of_its_tokens(asker: Asker, stream: bool) -> None:
    change = {"include": ["message.output_text.logprobs"], "top_logprobs": 2,
              "max_output_tokens": 24, "ignore_eos": True, "skip_special_tokens": False,
              "reasoning": {"effort": "none"}}  # fmt: skip
    answer = asker.ask(RESPONSES, change, stream=stream)
    events = packets(answer).events if stream else ()
    response = events[-1]["response"] if stream else answer.json()
    parts = [p for item in response["output"] if item["type"] == "message" for p in item["content"]]
    assert parts
    for part in parts:
        raw = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
        assert part["text"] == raw.decode(errors="ignore")
        assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    if stream:
        deltas = [e for e in events if e["type"] == "response.output_text.delta"]
        assert [n for e in deltas for n in e["logprobs"]] == [
            n for p in parts for n in p["logprobs"]
        ]


def test_the_client_reads_log_probabilities_everywhere(client: OpenAI) -> None:
    message: Any = [{"role": "user", "content": "Hi"}]
    asked: dict[str, Any] = {"model": "nano", "messages": message, "max_tokens": 4, "n": 2}
    chat = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    content = chat.choices[1].logprobs.content  # type: ignore[union-attr]
    assert content[0].top_logprobs[0].bytes
    stream = client.chat.completions.create(**asked, logprobs=True, stream=True)
    read = [c.logprobs for chunk in stream for c in chunk.choices if c.logprobs]
    assert sum(len(scores.content or ()) for scores in read) == 8
    text = client.completions.create(model="nano", prompt="Hi", max_tokens=2, logprobs=2, echo=True)
    assert text.choices[0].logprobs.token_logprobs[0] is None  # type: ignore[union-attr,index]
    response = client.responses.create(
        model="nano", input="Hi", max_output_tokens=8, top_logprobs=1,
        include=["message.output_text.logprobs"], extra_body={"ignore_eos": True},
    )  # fmt: skip
    texts = [part for item in response.output if item.type == "message" for part in item.content]
    assert all(part.logprobs for part in texts if part.type == "output_text" and part.text)


@STREAMED
@pytest.mark.parametrize(("include", "expected"), [(None, "one "), (True, "one STOP")])
def test_a_stop_string_is_in_the_text_if_it_is_wanted(
    scripted: ScriptedServer, include: bool | None, expected: str, stream: bool
) -> None:
    scripted.say("one STOP two")
    body = {"model": "nano", "prompt": "x", "stop": "STOP", "include_stop_str_in_output": include}
    answer = httpx.post(f"{scripted.url}{COMPLETIONS}", json={**body, "stream": stream})
    told = said(COMPLETIONS, answer, stream=stream)
    assert told.content == {0: expected}
    assert told.finish == {0: "stop"}


@STREAMED
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "a b"),
        ({"skip_special_tokens": False}, "a ]~b] b"),
        ({"skip_special_tokens": False, "include_stop_str_in_output": True}, "a ]~b] b[e~["),
    ],
)
def test_special_tokens_are_in_the_text_if_they_are_wanted(
    scripted: ScriptedServer, fields: dict[str, Any], expected: str, stream: bool
) -> None:
    scripted.say("a ]~b] b")
    body = {"model": "nano", "prompt": "x", "stream": stream, **fields}
    told = said(COMPLETIONS, httpx.post(f"{scripted.url}{COMPLETIONS}", json=body), stream=stream)
    assert told.content[0].replace("  ", " ") == expected


@STREAMED
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_client_that_leaves_ends_every_choice(
    scripted: ScriptedServer, path: str, stream: bool
) -> None:
    scripted.say("a b c", finish=None)
    scripted.engine.aborted.clear()
    prompt = {"messages": [{"role": "user", "content": "Hi"}]} if path == CHAT else {"prompt": "x"}
    body = {"model": "nano", "n": 5, "stream": stream, **prompt}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{scripted.url}{path}", json=body, timeout=1.0)
    for _ in range(100):
        if len(scripted.engine.aborted) == 5:
            break
        httpx.get(f"{scripted.url}/health")
    assert len({name.rpartition("-")[2] for name in scripted.engine.aborted}) == 5


def test_seeds_at_the_end_of_their_range_have_choices(asker: Asker) -> None:
    change = {"seed": 2**63 - 1, "n": 2, "max_tokens": 8, "ignore_eos": True, "temperature": 1.0}
    told = said(CHAT, asker.ask(CHAT, change, stream=False), stream=False)
    wrapped = {**change, "seed": -(2**63), "n": 1}
    first = said(CHAT, asker.ask(CHAT, wrapped, stream=False), stream=False)
    assert told.content[1] == first.content[0]


def test_tokens_can_be_told_as_ids(asker: Asker) -> None:
    change = {"logprobs": 1, "return_tokens_as_token_ids": True, "return_token_ids": True}
    ((choice,),) = choices(asker, COMPLETIONS, change, stream=False)
    ids = [int(name.removeprefix("token_id:")) for name in choice["logprobs"]["tokens"]]
    assert ids == choice["token_ids"]
    asked = asker.http.post("/tokenize", json={"prompt": "Say hello to the world."})
    assert choice["prompt_token_ids"] == asked.json()["tokens"]
