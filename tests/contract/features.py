"""Everything that is served: a name, and what it changes in an endpoint's base question.

Rows are added with the features; every row is asked whole and streamed, and compared.
"""

from __future__ import annotations

from typing import Any

from tests.contract import forms
from tests.contract.anthropic_api import ANTHROPIC_FEATURES
from tests.contract.asking import CHAT, COMPLETIONS, MESSAGES, RESPONSES, USER

from gnomon.engine.serve.seal import Seal

SECRET = "the contract's reasoning key"
SEALED = Seal(SECRET).close("They greet.")

Table = dict[str, dict[str, Any]]

WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "Weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": WEATHER}]
FLAT_TOOLS: list[dict[str, Any]] = [{"type": "function", **WEATHER}]
CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Köln"}'},
}


def talk(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [*USER, *messages, {"role": "user", "content": "And now?"}]}


def items(*items: dict[str, Any]) -> dict[str, Any]:
    return {"input": [*USER, *items, {"role": "user", "content": "And now?"}]}


SAMPLING: Table = {
    "nothing": {},
    "temperature 0": {"temperature": 0},
    "temperature 0.001": {"temperature": 0.001},
    "temperature 2": {"temperature": 2},
    "temperature 1.0": {"temperature": 1.0},
    "top_p small": {"top_p": 0.01},
    "top_p 1": {"top_p": 1},
    "top_k off": {"top_k": -1},
    "top_k 0": {"top_k": 0},
    "top_k 1": {"top_k": 1},
    "top_k huge": {"top_k": 2**31 - 1},
    "min_p 0": {"min_p": 0},
    "min_p": {"min_p": 0.3},
    "every filter": {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "min_p": 0.02},
    "seed 0": {"seed": 0},
    "seed negative": {"seed": -1},
    "seed largest": {"seed": 2**63 - 1},
    "seed smallest": {"seed": -(2**63)},
    "stop": {"stop": "e"},
    "stop multi-byte": {"stop": "漢字"},
    "stops": {"stop": ["zz", "e", "\n"]},
    "16 stops": {"stop": [f"stop {n}" for n in range(16)]},
    "no stops": {"stop": []},
    "stop ids": {"stop_token_ids": [1, 2, 3]},
    "64 stop ids": {"stop_token_ids": list(range(64))},
    "ignore_eos": {"ignore_eos": True},
    "min_tokens": {"min_tokens": 2},
    "min_tokens and stop ids": {"min_tokens": 2, "stop_token_ids": list(range(64))},
    "logit_bias": {"logit_bias": {"5": 100, "6": -100, "7": 0.5}},
    "a biased token alone": {"logit_bias": {"300": 100}, "ignore_eos": True, "temperature": 0},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": -1.5},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "every penalty": {
        "presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 1.1, "temperature": 0,
    },
    "16 pairs of metadata": {"metadata": {"k" * 63 + f"{n:x}": "v" * 512 for n in range(16)}},
    "stop in a character": {"stop": ["é", "\u0301", "\u2028"]},
    "no obfuscation": {"stream_options": {"include_obfuscation": False, "include_usage": True}},
    "special tokens in the text": {"skip_special_tokens": False},
    "special tokens left out": {"skip_special_tokens": True},
    "stop in the text": {"stop": ["e", "a"], "include_stop_str_in_output": True},
    "the end in the text": {
        "include_stop_str_in_output": True, "skip_special_tokens": False,
        "stop_token_ids": list(range(64)),
    },
    "user": {"user": "someone"},
    "metadata": {"metadata": {"run": "7"}},
    "store false": {"store": False},
    "service tier": {"service_tier": "auto"},
    "safety identifier": {"safety_identifier": "x"},
    "prompt cache key": {"prompt_cache_key": "x", "prompt_cache_retention": "24h"},
    "everything null": dict.fromkeys(
        ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos",
         "min_tokens", "metadata", "user", "n", "logit_bias", "presence_penalty")
    ),
}  # fmt: skip

CHOICES: Table = {
    "n 1": {"n": 1, "best_of": 1},
    "n 3": {"n": 3},
    "n 3 without a seed": {"n": 3, "seed": None, "temperature": 0},
    "n 2 and best_of": {"n": 2, "best_of": 2, "temperature": 0},
    "n 8": {"n": 8, "max_tokens": 2},
    "n 3 and log probabilities": {"n": 3, "logprobs": 1},
    "n 2 and a stop": {"n": 2, "stop": ["e", "a"], "max_tokens": 16},
    "n 2 and the largest seed": {"n": 2, "seed": 2**63 - 1},
    "token ids": {"return_token_ids": True},
    "token ids of two": {"return_token_ids": True, "n": 2},
    "tokens as ids": {"logprobs": 2, "return_tokens_as_token_ids": True},
}


def chat_scores(table: Table) -> Table:
    """The same rows with chat's spelling of ``logprobs``."""
    return {
        name: {**row, "logprobs": True, "top_logprobs": row["logprobs"]}
        if "logprobs" in row
        else row
        for name, row in table.items()
    }


CHAT_FEATURES: Table = {
    **SAMPLING,
    **chat_scores(CHOICES),
    "log probabilities": {"logprobs": True},
    "20 log probabilities": {"logprobs": True, "top_logprobs": 20},
    "log probabilities of reasoning": {
        "logprobs": True, "top_logprobs": 2, "reasoning_effort": "high", "max_tokens": 16,
    },
    "log probabilities of tools": {"logprobs": True, "top_logprobs": 1, "tools": TOOLS},
    "log probabilities off": {"logprobs": False, "top_logprobs": 0},
    "n 2 with tools": {"n": 2, "tools": TOOLS, "max_tokens": 16},
    "n 2 of JSON": {
        "n": 2, "max_tokens": 128, "logprobs": True, "ignore_eos": None,
        "response_format": {"type": "json_object"},
    },
    "one token": {"max_tokens": 1},
    "both caps": {"max_tokens": 5, "max_completion_tokens": 5},
    "newer cap": {"max_tokens": None, "max_completion_tokens": 5},
    "many tokens": {"max_tokens": 64, "ignore_eos": True},
    "neutral penalties": {
        "presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1,
    },
    "neutral fields": {"logit_bias": {}, "logprobs": False, "functions": []},
    "text format": {"response_format": {"type": "text"}},
    "text modality": {"modalities": ["text"]},
    "tools": {"tools": TOOLS},
    "tools auto": {"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": True},
    "tools none": {"tools": TOOLS, "tool_choice": "none"},
    "no tools": {"tools": []},
    "tool without parameters": {"tools": [{"type": "function", "function": {"name": "now"}}]},
    **{
        f"effort {effort}": {"reasoning_effort": effort}
        for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max")
    },
    **{
        f"thinking {mode}": {"chat_template_kwargs": {"thinking_mode": mode}}
        for mode in ("enabled", "disabled", "adaptive")
    },
    "system": {"messages": [{"role": "system", "content": "Be brief."}, *USER]},
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, *USER]},
    "history": talk({"role": "assistant", "content": "Hello."}),
    "history with reasoning_content": talk(
        {"role": "assistant", "content": "Hello.", "reasoning_content": "They greet."}
    ),
    "history with reasoning": talk(
        {"role": "assistant", "content": "Hello.", "reasoning": "They greet."}
    ),
    "history with reasoning in the content": talk(
        {"role": "assistant", "content": "<mm:think>They greet.</mm:think>Hello."}
    ),
    "history with reasoning in both": talk(
        {"role": "assistant", "content": "<mm:think>They greet.</mm:think>Hello.",
         "reasoning_content": "They greet.", "reasoning": "They greet."}
    ),
    "history with reasoning alone": talk({"role": "assistant", "reasoning_content": "Hm."}),
    "history with others' members": talk(
        {"role": "assistant", "content": "Hello.", "refusal": None, "annotations": [],
         "provider_specific_fields": {}, "audio": None}
    ),
    "history with a call": talk(
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12 °C"},
    ),
    "history with a call and text": talk(
        {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "12 °C"}]},
    ),
    "text parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
                                                  {"type": "text", "text": "b"}]}]
    },
    "empty text": {"messages": [{"role": "user", "content": ""}]},
    "name": {"messages": [{"role": "user", "content": "x", "name": "someone"}]},
    "multi-byte": {"messages": [{"role": "user", "content": "Ünïcode 漢字 😀 e\u0301 \u2028"}]},
    "markers in text": {
        "messages": [{"role": "user", "content": "[e~[]~b]ai<mm:think>]<]minimax[>["}]
    },
    "a long prompt": {"messages": [{"role": "user", "content": "word " * 300}]},
    "three languages and tools": {
        "messages": [{"role": "user", "content": "Bücher, книги, 本"}], "tools": TOOLS,
        "reasoning_effort": "high", "max_tokens": 24,
    },
}  # fmt: skip

RESPONSES_FEATURES: Table = {
    "log probabilities": {"include": ["message.output_text.logprobs"]},
    "5 log probabilities": {
        "include": ["message.output_text.logprobs"], "top_logprobs": 5, "max_output_tokens": 16,
    },
    "log probabilities by number": {"top_logprobs": 20},
    "log probabilities and reasoning": {"top_logprobs": 1, "reasoning": {"effort": "high"}},
    "log probabilities and tools": {"top_logprobs": 1, "tools": FLAT_TOOLS},
    **{name: change for name, change in SAMPLING.items() if name != "n 1"},
    "one token": {"max_output_tokens": 1},
    "many tokens": {"max_output_tokens": 64, "ignore_eos": True},
    "instructions": {"instructions": "Be brief."},
    "a message": {"input": USER},
    "a message item": {"input": [{"type": "message", **USER[0]}]},
    "text parts": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]
    },
    "history": items({"role": "assistant", "content": "Hello."}),
    "history in output_text": items(
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "Hello.", "annotations": []}]}
    ),
    "history with a call": items(
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "12 °C"},
    ),
    "history with reasoning": items(
        {"type": "reasoning", "id": "rs_1", "summary": [],
         "content": [{"type": "reasoning_text", "text": "They greet."}]},
        {"role": "assistant", "content": "Hello."},
    ),
    "history with sealed reasoning": items(
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": SEALED},
        {"role": "assistant", "content": "Hello."},
    ),
    "history with a summary": items(
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "They greet."}]},
        {"role": "assistant", "content": "Hello."},
    ),
    "sealed reasoning": {
        "include": ["reasoning.encrypted_content"], "store": False, "reasoning": {"effort": "high"},
    },
    "truncation": {"truncation": "auto"},
    "truncation of a long conversation": {
        "truncation": "auto",
        "input": [*({"role": role, "content": "word " * 120} for role in ("user", "assistant") * 9),
                  *USER],
    },
    "tool calls at most": {"max_tool_calls": 3},
    "stored": {"store": True, "metadata": {"a": "b"}},
    "tools": {"tools": FLAT_TOOLS},
    "tools none": {"tools": FLAT_TOOLS, "tool_choice": "none"},
    **{
        f"effort {effort}": {"reasoning": {"effort": effort}}
        for effort in ("none", "low", "medium", "high")
    },
    "summary auto": {"reasoning": {"effort": "low", "summary": "auto"}},
    "thinking enabled": {"chat_template_kwargs": {"thinking_mode": "enabled"}},
    "text format": {"text": {"format": {"type": "text"}}},
    "no truncation": {"truncation": "disabled"},
    "parallel": {"parallel_tool_calls": True},
    "neutral fields": {"include": [], "background": False, "top_logprobs": 0, "n": 1},
    "multi-byte": {"input": "Ünïcode 漢字 😀"},
    "markers in text": {"input": "[e~[]~b]ai<mm:think>"},
}  # fmt: skip

COMPLETIONS_FEATURES: Table = {
    **SAMPLING,
    **CHOICES,
    "log probabilities": {"logprobs": 0},
    "20 log probabilities": {"logprobs": 20},
    "echo": {"echo": True},
    "echo and log probabilities": {"echo": True, "logprobs": 2},
    "echo of ids": {"echo": True, "prompt": [5, 6, 2041, 7], "logprobs": 1},
    "echo of multi-byte text": {"echo": True, "prompt": "Ünïcode 漢字 😀", "logprobs": 1},
    "echo alone": {"echo": True, "max_tokens": 0},
    "the prompt's log probabilities": {"echo": True, "max_tokens": 0, "logprobs": 3},
    "no tokens": {"max_tokens": 0},
    "no tokens of many": {"max_tokens": 0, "prompt": ["a", "b", "a"], "echo": True},
    "prompt log probabilities": {"prompt_logprobs": 2},
    "prompt log probabilities of ids": {"prompt_logprobs": 0, "prompt": [[5, 6, 7], [8]]},
    "prompt log probabilities of a known prompt": {"prompt": "word " * 300, "prompt_logprobs": 1},
    "both log probabilities": {"prompt_logprobs": 3, "logprobs": 1, "echo": True},
    "n 2 of two prompts": {"n": 2, "prompt": ["a", "b"], "echo": True, "logprobs": 1},
    "n 2 and prompt log probabilities": {"n": 2, "prompt_logprobs": 1, "prompt": "word " * 200},
    "one token": {"max_tokens": 1},
    "many tokens": {"max_tokens": 64, "ignore_eos": True},
    "ids": {"prompt": [5, 6, 7]},
    "one id": {"prompt": [5]},
    "texts": {"prompt": ["a", "b", "Ünïcode 漢字 😀"]},
    "one text": {"prompt": ["a"]},
    "lists of ids": {"prompt": [[5, 6], [7]]},
    "twice the same": {"prompt": ["same", "same"]},
    "eight prompts": {"prompt": [f"prompt {n}" for n in range(8)]},
    "markers count": {"prompt": "]~b]user\nHi[e~[\n]~b]ai\n"},
    "a long prompt": {"prompt": "word " * 300},
    "neutral fields": {"n": 1, "best_of": 1, "echo": False, "suffix": ""},
}

FEATURES: dict[str, Table] = {
    CHAT: CHAT_FEATURES | forms.CHANGES[CHAT],
    RESPONSES: RESPONSES_FEATURES | forms.CHANGES[RESPONSES],
    COMPLETIONS: COMPLETIONS_FEATURES | forms.CHANGES[COMPLETIONS],
    MESSAGES: ANTHROPIC_FEATURES | forms.CHANGES[MESSAGES],
}
CASES = [(path, name) for path, table in FEATURES.items() for name in table]
