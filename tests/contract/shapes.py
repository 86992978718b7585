"""What a whole answer and the packets of a stream must look like."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.contract.asking import CHAT, MESSAGES, RESPONSES, Packets

FINISH = {"stop", "length", "tool_calls"}
STOPS = {"end_turn", "max_tokens", "stop_sequence", "tool_use"}


def check_usage(usage: dict[str, Any], path: str) -> None:
    """All members, and sums that are sums."""
    read, written = ("input", "output") if path == RESPONSES else ("prompt", "completion")
    assert usage["total_tokens"] == usage[f"{read}_tokens"] + usage[f"{written}_tokens"]
    assert 0 <= usage[f"{read}_tokens_details"]["cached_tokens"] <= usage[f"{read}_tokens"]
    thought = usage[f"{written}_tokens_details"]["reasoning_tokens"]
    assert 0 <= thought <= usage[f"{written}_tokens"]


def check_whole(path: str, told: dict[str, Any]) -> None:
    """The members of a whole answer."""
    if path == MESSAGES:
        _check_message(told)
        assert told["stop_reason"] in STOPS
        return
    check_usage(told["usage"], path)
    if path == RESPONSES:
        _check_response(told)
        return
    chat = path == CHAT
    assert told["object"] == ("chat.completion" if chat else "text_completion")
    assert told["id"].startswith("chatcmpl-" if chat else "cmpl-")
    assert told["model"] == "nano"
    assert [choice["index"] for choice in told["choices"]] == list(range(len(told["choices"])))
    for choice in told["choices"]:
        assert choice["finish_reason"] in FINISH
        if chat:
            assert choice["message"]["role"] == "assistant"
            assert "content" in choice["message"]
        else:
            assert isinstance(choice["text"], str)


def _check_response(told: dict[str, Any]) -> None:
    assert told["object"] == "response"
    assert told["id"].startswith("resp_")
    assert told["model"] == "nano"
    assert told["status"] in ("completed", "incomplete")
    assert (told["status"] == "incomplete") == bool(told["incomplete_details"])
    ids = [item["id"] for item in told["output"]]
    assert len(set(ids)) == len(ids)


def _check_message(told: dict[str, Any]) -> None:
    assert told["type"] == "message"
    assert told["role"] == "assistant"
    assert told["id"].startswith("msg_")
    assert told["model"] == "nano"
    assert (told["stop_reason"] == "stop_sequence") == (told["stop_sequence"] is not None)
    assert {"input_tokens", "output_tokens", "cache_read_input_tokens"} <= set(told["usage"])
    for block in told["content"]:
        assert block["type"] in ("text", "thinking", "tool_use")


def _check_blocks(stream: Packets) -> None:
    """Anthropic's order: start, one block after the other, delta, stop."""
    events = stream.events
    assert list(stream.names) == [event["type"] for event in events]
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    _check_message(events[0]["message"])
    assert events[-2]["delta"]["stop_reason"] in STOPS
    assert events[-2]["usage"]["output_tokens"] >= events[0]["message"]["usage"]["output_tokens"]
    growing, at = False, -1
    for event in events[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert not growing
                growing, at = True, at + 1
            case "content_block_delta":
                assert growing
                delta = event["delta"]
                kind = delta["type"].removesuffix("_delta")
                assert delta["partial_json" if kind == "input_json" else kind], "an empty packet"
            case kind:
                assert (kind, growing) == ("content_block_stop", True)
                growing = False
        assert event["index"] == at
    assert not growing


def check_packets(path: str, stream: Packets) -> None:
    """Every rule for the packets of a stream with usage."""
    assert "\ufffd" not in stream.text
    assert "\\ufffd" not in stream.text
    if path == RESPONSES:
        _check_events(stream)
        return
    if path == MESSAGES:
        _check_blocks(stream)
        return
    assert stream.done
    first, last = stream.events[0], stream.events[-1]
    assert all(e["id"] == first["id"] and e["created"] == first["created"] for e in stream.events)
    kind = "chat.completion.chunk" if path == CHAT else "text_completion"
    assert {event["object"] for event in stream.events} == {kind}
    assert {event["model"] for event in stream.events} == {"nano"}
    assert [bool(event.get("usage")) for event in stream.events[:-1]] == [False] * (
        len(stream.events) - 1
    )
    assert last["choices"] == []
    check_usage(last["usage"], path)
    choices: dict[int, list[dict[str, Any]]] = {}
    for event in stream.events[:-1]:
        assert event["choices"], "only the last packet is without choices"
        for choice in event["choices"]:
            choices.setdefault(choice["index"], []).append(choice)
    for parts in choices.values():
        _check_choice(parts, chat=path == CHAT)


def _check_choice(parts: list[dict[str, Any]], *, chat: bool) -> None:
    reasons = [part["finish_reason"] for part in parts]
    assert reasons[-1] in FINISH
    assert reasons[:-1] == [None] * (len(parts) - 1), "one finish_reason, in the last packet"
    if not chat:
        assert all(isinstance(part["text"], str) for part in parts)
        return
    deltas = [part["delta"] for part in parts]
    assert deltas[0]["role"] == "assistant"
    assert all("role" not in delta for delta in deltas[1:])
    kinds = ("content", "reasoning_content", "tool_calls")
    assert all(sum(bool(delta.get(kind)) for kind in kinds) <= 1 for delta in deltas)
    assert "" not in [delta.get("content") for delta in deltas[1:]], "an empty packet"
    _check_calls([call for delta in deltas for call in delta.get("tool_calls") or ()])


def _check_calls(calls: list[dict[str, Any]]) -> None:
    seen: Counter[int] = Counter()
    ids = set()
    for call in calls:
        at = call["index"]
        if not seen[at]:
            assert at == len(seen), "calls are numbered in their order"
            assert call["id"]
            assert call["type"] == "function"
            assert call["function"]["name"]
            ids.add(call["id"])
        else:
            assert "id" not in call
            assert "name" not in call["function"]
        assert isinstance(call["function"]["arguments"], str)
        seen[at] += 1
    assert len(ids) == len(seen)


def _check_events(stream: Packets) -> None:
    events = stream.events
    assert list(stream.names) == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last["type"] in ("response.completed", "response.incomplete")
    _check_response(last["response"])
    check_usage(last["response"]["usage"], RESPONSES)
    before = [event["response"] for event in events[:-1] if "response" in event]
    assert all(not response.get("usage") for response in before)
    added = [e["item"]["id"] for e in events if e["type"] == "response.output_item.added"]
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert added == [item["id"] for item in done]
    assert done == last["response"]["output"]
    texts: dict[tuple[str, str], str] = {}
    for event in events:
        kind, _, stage = event["type"].rpartition(".")
        key = (event.get("item_id", ""), kind)
        if stage == "delta":
            assert event["delta"], "an empty packet"
            texts[key] = texts.get(key, "") + event["delta"]
        elif stage == "done" and key in texts:
            whole = event.get("text", event.get("arguments"))
            assert texts.pop(key) == whole
    assert texts == {}, "text without its .done"
