"""The real client against a real server process: chat and text completions."""

from __future__ import annotations

import concurrent.futures
import time

import httpx
import pytest
from openai import OpenAI
from tests.clients.servers import ServerProcess

HELLO = [{"role": "user", "content": "Say hello to the world."}]


def test_a_chat_completion_is_complete(client: OpenAI) -> None:
    reply = client.chat.completions.create(model="nano", messages=HELLO, max_tokens=12)
    choice = reply.choices[0]
    assert reply.object == "chat.completion"
    assert reply.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert choice.message.content
    assert choice.message.tool_calls is None
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 12
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 12
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.completion_tokens_details is not None
    assert reply.usage.completion_tokens_details.reasoning_tokens == 0


def test_a_stream_says_what_the_whole_reply_says(client: OpenAI) -> None:
    asked = {"model": "nano", "messages": HELLO, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 24
    assert all("\ufffd" not in (delta.content or "") for delta in deltas)


def test_a_stream_without_include_usage_has_none(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(model="nano", messages=HELLO, max_tokens=4, stream=True)
    )
    assert all(chunk.usage is None for chunk in chunks)
    assert all(chunk.choices for chunk in chunks)


def test_the_stream_ends_with_done(nano: ServerProcess) -> None:
    body = {"model": "nano", "messages": HELLO, "max_tokens": 3, "stream": True}
    answer = httpx.post(f"{nano.base_url}/chat/completions", json=body, timeout=60)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")


def test_the_stream_helper_gives_the_whole_completion(client: OpenAI) -> None:
    first = client.chat.completions.create(
        model="nano", messages=HELLO, max_tokens=16, temperature=0
    )
    text = first.choices[0].message.content
    assert text
    stop = text[len(text) // 2]
    with client.chat.completions.stream(
        model="nano",
        messages=HELLO,
        max_tokens=16,
        temperature=0,
        stop=[stop],
        stream_options={"include_usage": True},
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds | {"content.delta"}
    assert final.choices[0].finish_reason == "stop"
    assert (final.choices[0].message.content or "") == text[: text.index(stop)]
    assert final.usage is not None
    assert final.usage.completion_tokens <= 16


def test_the_same_seed_gives_the_same_text_in_any_company(client: OpenAI) -> None:
    def ask(seed: int) -> str | None:
        reply = client.chat.completions.create(
            model="nano", messages=HELLO, max_tokens=16, seed=seed, temperature=1.0
        )
        return reply.choices[0].message.content

    alone = ask(7)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        together = list(pool.map(ask, [7, 1, 7, 2, 7, 3]))
    assert together[::2] == [alone] * 3
    assert len(set(together)) > 1


def test_a_request_without_a_cap_gets_the_checkpoint_s(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="nano", messages=HELLO, extra_body={"ignore_eos": True}
    )
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 256


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_cap_work(client: OpenAI, name: str) -> None:
    reply = client.chat.completions.create(
        model="nano", messages=HELLO, extra_body={"ignore_eos": True, name: 5}
    )
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 5


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.001},
        {"temperature": 2.0, "top_p": 0.5},
        {"extra_body": {"top_k": 1}},
        {"extra_body": {"min_p": 0.9, "top_k": -1}},
        {"store": False, "user": "u", "metadata": {"a": "b"}, "service_tier": "auto"},
        {"n": 1, "logprobs": False, "presence_penalty": 0, "frequency_penalty": 0.0},
        {"response_format": {"type": "text"}, "reasoning_effort": "none"},
        {"extra_body": {"chat_template_kwargs": {"thinking_mode": "enabled"}}},
    ],
    ids=str,
)
def test_sampling_and_harmless_fields_are_taken(
    client: OpenAI, sampling: dict[str, object]
) -> None:
    reply = client.chat.completions.create(model="nano", messages=HELLO, max_tokens=4, **sampling)  # type: ignore[call-overload]
    assert reply.usage.completion_tokens <= 4


def test_a_repeated_prompt_is_found_in_the_cache(client: OpenAI) -> None:
    messages = [{"role": "user", "content": "A long story about blocks. " * 60}]
    asked = {"model": "nano", "messages": messages, "max_tokens": 2}
    client.chat.completions.create(**asked)
    again = client.chat.completions.create(**asked)
    assert again.usage is not None
    assert again.usage.prompt_tokens > 256
    assert again.usage.prompt_tokens_details is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) >= 128


def test_text_completions_take_text_lists_and_token_ids(client: OpenAI) -> None:
    for prompt in ("Once", ["Once", "Twice"], [5, 6, 7], [[5, 6], [7]]):
        reply = client.completions.create(model="nano", prompt=prompt, max_tokens=3, temperature=0)
        many = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
        assert [choice.index for choice in reply.choices] == list(range(many))
        assert reply.usage is not None
        assert reply.usage.completion_tokens <= 3 * many
        streamed = [""] * many
        for chunk in client.completions.create(
            model="nano", prompt=prompt, max_tokens=3, temperature=0, stream=True
        ):
            for choice in chunk.choices:
                streamed[choice.index] += choice.text
        assert streamed == [choice.text for choice in reply.choices]


def test_models_tell_their_length(client: OpenAI, nano: ServerProcess) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == ["nano"]
    assert models[0].model_extra is not None
    assert models[0].model_extra["max_model_len"] == 4096
    assert client.models.retrieve("nano").id == "nano"


def test_the_server_tells_what_it_serves(nano: ServerProcess) -> None:
    info = httpx.get(f"{nano.url}/server_info").json()
    assert info["engine"] == "gnomon"
    assert info["facts"]["kv_cache_dtype"] == "mxfp4"
    assert info["facts"]["max_model_len"] == 4096
    assert info["served_model_names"] == ["nano"]
    assert info["tool_call_parser"] == info["reasoning_parser"] == "minimax_m3"
    assert len(info["chat_template_sha256"]) == 64
    assert info["generation_defaults"]["max_tokens"] == 256
    assert httpx.get(f"{nano.url}/version").json()["engine"] == "gnomon"
    assert httpx.get(f"{nano.url}/health").status_code == 200


def gauges(nano: ServerProcess) -> dict[str, float]:
    lines = httpx.get(f"{nano.url}/metrics").text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def test_metrics_count_what_was_done(client: OpenAI, nano: ServerProcess) -> None:
    before = gauges(nano)
    client.chat.completions.create(
        model="nano", messages=HELLO, max_tokens=5, extra_body={"ignore_eos": True}
    )
    after = gauges(nano)

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert grown("gnomon:generation_tokens_total") == 5
    assert grown("gnomon:prompt_tokens_total") > 5
    assert grown("gnomon:time_to_first_token_seconds_count") == 1
    assert grown("gnomon:inter_token_latency_seconds_count") == 4
    assert grown("gnomon:e2e_request_latency_seconds_count") == 1
    assert grown("gnomon:request_queue_time_seconds_count") == 1
    assert grown('gnomon:request_success_total{finished_reason="length"}') == 1
    for name in (
        "gnomon:prefix_cache_queries_total",
        "gnomon:prefix_cache_hits_total",
        "gnomon:preemptions_total",
        "gnomon:num_requests_running",
        "gnomon:num_requests_waiting",
        "gnomon:kv_cache_usage_ratio",
        'gnomon:kv_cache_blocks{state="used"}',
    ):
        assert name in after


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(nano: ServerProcess, stream: bool) -> None:
    body = {
        "model": "nano",
        "messages": HELLO,
        "max_tokens": 3000,
        "ignore_eos": True,
        "stream": stream,
    }
    aborted = 'gnomon:request_success_total{finished_reason="abort"}'
    before = gauges(nano)[aborted]
    with (
        httpx.Client(timeout=1.0) as http,
        pytest.raises(httpx.ReadTimeout) if not stream else http.stream(
            "POST", f"{nano.base_url}/chat/completions", json=body
        ) as answer,
    ):  # fmt: skip
        if stream:
            chunks = answer.iter_bytes()
            next(chunks)
            assert gauges(nano)['gnomon:kv_cache_blocks{state="used"}'] > 0
        else:
            http.post(f"{nano.base_url}/chat/completions", json=body)
    deadline = time.monotonic() + 20
    while gauges(nano)['gnomon:kv_cache_blocks{state="used"}'] and time.monotonic() < deadline:
        time.sleep(0.05)
    after = gauges(nano)
    assert after['gnomon:kv_cache_blocks{state="used"}'] == 0
    assert after["gnomon:num_requests_running"] == 0
    assert after[aborted] == before + 1
