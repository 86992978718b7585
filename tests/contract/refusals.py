"""What is refused for good, whatever else comes to be served: change, param and codes."""

from __future__ import annotations

from typing import Any

from tests.contract.anthropic_api import ANTHROPIC_REFUSALS
from tests.contract.asking import CHAT, COMPLETIONS, MESSAGES, RESPONSES, USER
from tests.contract.features import CALL, WEATHER
from tests.contract.form_refusals import FORM_REFUSALS

Refusal = tuple[dict[str, Any], str | None, str]
INVALID, UNKNOWN, MISSING = "invalid_value", "unknown_parameter", "missing_parameter"
UNSUPPORTED, PART = "unsupported_parameter", "unsupported_content_part"
ANY = ""  # where the code depends on what else is served


def function(**members: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {**WEATHER, **members}}]}


def say(**message: Any) -> dict[str, Any]:
    return {"messages": [*USER, message]}


def call(**members: Any) -> dict[str, Any]:
    made = {**CALL, "function": {**CALL["function"], **members}}
    answer = {"role": "tool", "tool_call_id": "call_1", "content": "x"}
    asked = {"role": "assistant", "content": None, "tool_calls": [made]}
    return {"messages": [*USER, asked, answer]}


def part(**members: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [members]}]}


def item(**members: Any) -> dict[str, Any]:
    return {"input": [*USER, members]}


def ranges(*rows: tuple[str, tuple[Any, ...]]) -> dict[str, Refusal]:
    return {
        f"{name}={value!r}"[:60]: ({name: value}, name, INVALID)
        for name, values in rows
        for value in values
    }


CHOICE_RANGES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("n", (1.5, True, 129)),
    ("best_of", (1.5, "2")),
    ("return_token_ids", (1, "yes")),
    ("return_tokens_as_token_ids", (1, "yes")),
)

SHARED: dict[str, Refusal] = {
    **ranges(
        ("temperature", (-0.1, 2.1, 5.0, "1", True, [], 1e308)),
        ("top_p", (0, -1, 1.1, "x", False)),
        ("top_k", (-2, 1.5, "5", 2**40)),
        ("min_p", (-0.1, 1.1, "x")),
        ("seed", (1.5, "7", True, 2**63, -(2**63) - 1)),
        ("stop", ("", 5, {})),
        ("stop_token_ids", ("x", 5, list(range(65)))),
        ("ignore_eos", (1, "true")),
        ("skip_special_tokens", (0, "no")),
        ("include_stop_str_in_output", (1, "yes")),
        ("min_tokens", (-1, 0.5, "x")),
        ("stream", ("yes", 1, [])),
    ),
    **ranges(
        ("store", ("yes", 1)),
        ("user", (5, [])),
        ("service_tier", (5, {})),
        ("safety_identifier", (5,)),
        ("prompt_cache_key", (5,)),
        ("prompt_cache_retention", (True,)),
        ("metadata", (5, "x", [])),
    ),
    "metadata of numbers": ({"metadata": {"a": 1}}, "metadata.a", INVALID),
    "17 pairs of metadata": ({"metadata": {str(n): "x" for n in range(17)}}, "metadata", INVALID),
    "a long key of metadata": ({"metadata": {"k" * 65: "x"}}, "metadata." + "k" * 65, INVALID),
    "a long value of metadata": ({"metadata": {"k": "x" * 513}}, "metadata.k", INVALID),
    "a stop that is a number": ({"stop": [5]}, "stop[0]", INVALID),
    "a stop that is too long": ({"stop": ["x" * 1025]}, "stop[0]", INVALID),
    "a stop id that no token has": ({"stop_token_ids": [5, 99999]}, "stop_token_ids", INVALID),
    "a bias for what no token is": ({"logit_bias": {"99999": 1}}, "logit_bias", INVALID),
    "a stop id that is negative": ({"stop_token_ids": [-1]}, "stop_token_ids[0]", INVALID),
    "no model": ({"model": None}, "model", INVALID),
    "model is a number": ({"model": 5}, "model", INVALID),
    "a misspelt field": ({"temprature": 1}, "temprature", UNKNOWN),
    "an empty field name": ({"": 1}, "", UNKNOWN),
    "a field of Python": ({"__class__": 1}, "__class__", UNKNOWN),
    "stream_options of another kind": ({"stream_options": 5}, "stream_options", INVALID),
    "an unknown stream option": ({"stream_options": {"x": 1}}, "stream_options.x", INVALID),
    "beam search": ({"use_beam_search": True}, "use_beam_search", UNSUPPORTED),
    "length_penalty": ({"length_penalty": 2.0}, "length_penalty", UNSUPPORTED),
    "bad_words": ({"bad_words": ["x"]}, "bad_words", UNSUPPORTED),
    "allowed_token_ids": ({"allowed_token_ids": [1]}, "allowed_token_ids", UNSUPPORTED),
    "truncate_prompt_tokens": (
        {"truncate_prompt_tokens": 5},
        "truncate_prompt_tokens",
        UNSUPPORTED,
    ),
    "n of 0": ({"n": 0}, "n", ANY),
    "n negative": ({"n": -1}, "n", ANY),
    "n is text": ({"n": "2"}, "n", ANY),
    "n too large": ({"n": 10**6}, "n", ANY),
    "presence_penalty too large": ({"presence_penalty": 9}, "presence_penalty", INVALID),
    "frequency_penalty too small": ({"frequency_penalty": -9}, "frequency_penalty", INVALID),
    "repetition_penalty negative": ({"repetition_penalty": -1}, "repetition_penalty", INVALID),
    "logit_bias is a list": ({"logit_bias": [1]}, "logit_bias", INVALID),
}

CHAT_REFUSALS: dict[str, Refusal] = {
    **SHARED,
    "top_logprobs alone": ({"top_logprobs": 2}, "top_logprobs", INVALID),
    "21 top_logprobs": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", INVALID),
    "best_of beyond n": ({"n": 2, "best_of": 3}, "best_of", UNSUPPORTED),
    "best_of alone": ({"best_of": 2}, "best_of", UNSUPPORTED),
    "prompt_logprobs": ({"prompt_logprobs": 1}, "prompt_logprobs", UNSUPPORTED),
    **ranges(
        ("max_tokens", (0, -1, 1.5, "8", True, 10**12)),
        ("logprobs", (1, "yes")),
        ("top_logprobs", (True, -1, 1.5, "2")),
        *CHOICE_RANGES,
        ("max_completion_tokens", (0, -1, 1.5, "8")),
        ("messages", (5, "hi", {})),
        ("tools", (5, "x", {})),
        ("chat_template_kwargs", (5, "x", [])),
    ),
    "messages missing": ({"messages": None}, "messages", INVALID),
    "no messages": ({"messages": []}, "messages", INVALID),
    "two caps": ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", INVALID),
    "a cap beyond the context": ({"max_tokens": 4000}, "max_tokens", "context_length_exceeded"),
    "a message is text": ({"messages": ["hi"]}, "messages[0]", INVALID),
    "a message is null": ({"messages": [None]}, "messages[0]", INVALID),
    "no role": ({"messages": [{"content": "x"}]}, "messages[0].role", MISSING),
    "role root": (say(role="root", content="x"), "messages[1].role", INVALID),
    "role is a number": (say(role=1, content="x"), "messages[1].role", INVALID),
    "no content": (say(role="user"), "messages[1].content", MISSING),
    "content is null": (say(role="user", content=None), "messages[1].content", MISSING),
    "content is a number": (say(role="user", content=1), "messages[1].content", INVALID),
    "an empty assistant": (say(role="assistant"), "messages[1].content", MISSING),
    "a user's calls": (say(role="user", content="x", tool_calls=[CALL]),
                       "messages[1].tool_calls", INVALID),
    "a user's reasoning": (say(role="user", content="x", reasoning_content="y"),
                           "messages[1].reasoning_content", INVALID),
    "a system's reasoning": (say(role="system", content="x", reasoning="y"),
                             "messages[1].reasoning", INVALID),
    "a user's tool_call_id": (say(role="user", content="x", tool_call_id="y"),
                              "messages[1].tool_call_id", INVALID),
    "a call of the older kind": (
        say(role="assistant", content="x", function_call={"name": "f", "arguments": "{}"}),
        "messages[1].function_call", INVALID),
    "audio in the history": (say(role="assistant", content="x", audio={"id": "a"}),
                             "messages[1].audio", INVALID),
    "a tool without an id": (say(role="tool", content="x"), "messages[1].tool_call_id", MISSING),
    "a call whose id does not match": (
        {"messages": [*USER, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                      {"role": "tool", "tool_call_id": "call_2", "content": "x"}]},
        "messages[2].tool_call_id", INVALID),
    "a call without its result": (
        {"messages": [*USER, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                      *USER]},
        "messages[2]", INVALID),
    "two results of one call": (
        {"messages": [*call()["messages"], {"role": "tool", "tool_call_id": "call_1",
                                            "content": "x"}]},
        "messages[3].tool_call_id", INVALID),
    "two calls of one id": (
        say(role="assistant", content=None, tool_calls=[CALL, CALL]),
        "messages[1].tool_calls[1].id", INVALID),
    "a call without an id": (
        say(role="assistant", content=None, tool_calls=[{**CALL, "id": None}]),
        "messages[1].tool_calls[0].id", MISSING),
    "a tool's result that is an object": (
        {"messages": [*call()["messages"][:2], {"role": "tool", "tool_call_id": "call_1",
                                                "content": {"a": 1}}]},
        "messages[2].content", INVALID),
    "an image as a tool's result": (
        {"messages": [*call()["messages"][:2],
                      {"role": "tool", "tool_call_id": "call_1",
                       "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[2].content[0]", PART),
    "reasoning spelled twice": (
        say(role="assistant", content="x", reasoning="a", reasoning_content="b"),
        "messages[1].reasoning", INVALID),
    "an image": (part(type="image_url", image_url={"url": "http://x/y.png"}),
                 "messages[0].content[0]", "unsupported_content_part"),
    "a local image": (part(type="image_url", image_url={"url": "file:///etc/passwd"}),
                      "messages[0].content[0]", "unsupported_content_part"),
    "audio": (part(type="input_audio", input_audio={"data": "", "format": "wav"}),
              "messages[0].content[0]", "unsupported_content_part"),
    "a file": (part(type="file", file={"file_id": "x"}),
               "messages[0].content[0]", "unsupported_content_part"),
    "video": (part(type="video_url", video_url={"url": "x"}),
              "messages[0].content[0]", "unsupported_content_part"),
    "a part without a type": (part(text="x"), "messages[0].content[0]", PART),
    "a part without text": (part(type="text"), "messages[0].content[0].text", INVALID),
    "a part whose text is a number": (part(type="text", text=5), "messages[0].content[0].text",
                                      INVALID),
    "arguments that are no JSON": (
        call(arguments="{x"), "messages[1].tool_calls[0].function.arguments", INVALID),
    "arguments that are a list": (
        call(arguments="[1]"), "messages[1].tool_calls[0].function.arguments", INVALID),
    "arguments with NaN": (
        call(arguments='{"a": NaN}'), "messages[1].tool_calls[0].function.arguments", INVALID),
    "a call without a name": (call(name=""), "messages[1].tool_calls[0].function.name", INVALID),
    "a call without a function": (
        say(role="assistant", tool_calls=[{"id": "c", "type": "function"}]),
        "messages[1].tool_calls[0].function", MISSING),
    "a tool of another type": (
        {"tools": [{"type": "web", "function": {"name": "f"}}]}, "tools[0].type", UNSUPPORTED),
    "a tool without a function": ({"tools": [{"type": "function"}]}, "tools[0].function", MISSING),
    "a tool without a name": (
        {"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", MISSING),
    "a tool's name with a blank": (function(name="a b"), "tools[0].function.name", INVALID),
    "a tool's empty name": (function(name=""), "tools[0].function.name", INVALID),
    "a tool's name that is too long": (function(name="x" * 200), "tools[0].function.name", INVALID),
    "two tools of one name": ({"tools": function()["tools"] * 2}, "tools", INVALID),
    "a tool's unknown member": (function(speed=1), "tools[0].function.speed", INVALID),
    "a schema that is text": (
        function(parameters="x"), "tools[0].function.parameters", "invalid_function_parameters"),
    "a schema of an array": (
        function(parameters={"type": "array"}),
        "tools[0].function.parameters", "invalid_function_parameters"),
    "a schema of an unknown type": (
        function(parameters={"type": "object", "properties": {"a": {"type": "dict"}}}),
        "tools[0].function.parameters", "invalid_function_parameters"),
    "a schema whose required is text": (
        function(parameters={"type": "object", "required": "a"}),
        "tools[0].function.parameters", "invalid_function_parameters"),
    "a schema whose properties are a list": (
        function(parameters={"type": "object", "properties": []}),
        "tools[0].function.parameters", "invalid_function_parameters"),
    "an unknown effort": ({"reasoning_effort": "huge"}, "reasoning_effort", INVALID),
    "effort is a number": ({"reasoning_effort": 1}, "reasoning_effort", INVALID),
    "an unknown thinking mode": (
        {"chat_template_kwargs": {"thinking_mode": "loud"}}, None, "template_refused"),
    "the server's template variable": (
        {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", INVALID),
    "a variable the template has not": (
        {"chat_template_kwargs": {"enable_thinking": False}},
        "chat_template_kwargs.enable_thinking", UNSUPPORTED),
    "functions, the older tools": ({"functions": [{"name": "f"}]}, "functions", UNSUPPORTED),
    "audio out": ({"modalities": ["audio"]}, "modalities", UNSUPPORTED),
    "guided_json": ({"guided_json": {}}, "guided_json", UNSUPPORTED),
    "web search": ({"web_search_options": {}}, "web_search_options", UNSUPPORTED),
    "a response's field": ({"max_output_tokens": 5}, "max_output_tokens", UNKNOWN),
    "a completion's field": ({"prompt": "x"}, "prompt", UNKNOWN),
    "too long a prompt": (
        {"messages": [{"role": "user", "content": "word " * 4000}]},
        "messages", "context_length_exceeded"),
}  # fmt: skip

RESPONSES_REFUSALS: dict[str, Refusal] = {
    **SHARED,
    "21 top_logprobs": ({"top_logprobs": 21}, "top_logprobs", INVALID),
    "n of 2": ({"n": 2}, "n", UNSUPPORTED),
    **ranges(
        ("max_output_tokens", (0, -1, 1.5, "8", True)),
        ("input", (5, {}, True)),
        ("instructions", (5, [])),
    ),
    "input missing": ({"input": None}, "input", INVALID),
    "no input": ({"input": []}, "input", INVALID),
    "an item is text": ({"input": ["x"]}, "input[0]", INVALID),
    "role root": (item(role="root", content="x"), "input[1].role", INVALID),
    "an unknown item": (item(type="computer_call"), "input[1].type", UNSUPPORTED),
    "an image": (item(role="user", content=[{"type": "input_image", "image_url": "x"}]),
                 "input[1].content[0]", "unsupported_content_part"),
    "a file": (item(role="user", content=[{"type": "input_file", "file_id": "x"}]),
               "input[1].content[0]", "unsupported_content_part"),
    "a call without an id": (
        item(type="function_call", name="f", arguments="{}"), "input[1].call_id", INVALID),
    "an output without an id": (
        item(type="function_call_output", output="x"), "input[1].call_id", INVALID),
    "arguments that are no JSON": (
        item(type="function_call", call_id="c", name="f", arguments="{x"),
        "input[1].arguments", INVALID),
    "a cap beyond the context": (
        {"max_output_tokens": 4000}, "max_output_tokens", "context_length_exceeded"),
    "an unknown effort": ({"reasoning": {"effort": "huge"}}, "reasoning.effort", INVALID),
    "an unknown reasoning option": ({"reasoning": {"x": 1}}, "reasoning.x", INVALID),
    "a nested tool": (
        {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name", MISSING),
    "a tool of another type": (
        {"tools": [{"type": "web_search", "name": "w"}]}, "tools[0].type", UNSUPPORTED),
    "a schema of an array": (
        {"tools": [{"type": "function", "name": "f", "parameters": {"type": "array"}}]},
        "tools[0].parameters", "invalid_function_parameters"),
    "a chat's field": ({"messages": USER}, "messages", UNKNOWN),
    "another cap": ({"max_tokens": 5}, "max_tokens", UNKNOWN),
    "background without a store": (
        {"background": True, "store": False}, "background", UNSUPPORTED),
    "a background that is text": ({"background": "yes"}, "background", INVALID),
    "a truncation of another kind": ({"truncation": "middle"}, "truncation", INVALID),
    "what cannot be included": (
        {"include": ["file_search_call.results"]}, "include[0]", UNSUPPORTED),
    "include that is text": (
        {"include": "reasoning.encrypted_content"}, "include", INVALID),
    "a summary in brief": (
        {"reasoning": {"summary": "concise"}}, "reasoning.summary", UNSUPPORTED),
    "an unknown summary": ({"reasoning": {"summary": "long"}}, "reasoning.summary", INVALID),
    "a conversation object": ({"conversation": "conv_1"}, "conversation", UNSUPPORTED),
    "a stored prompt": ({"prompt": {"id": "pmpt_1"}}, "prompt", UNSUPPORTED),
    "no tool calls at most": ({"max_tool_calls": 0}, "max_tool_calls", INVALID),
    "reasoning sealed by another": (
        item(type="reasoning", summary=[], encrypted_content="gAAAA"),
        "input[1].encrypted_content", "invalid_encrypted_content"),
    "sealed reasoning that is a number": (
        item(type="reasoning", summary=[], encrypted_content=5),
        "input[1].encrypted_content", INVALID),
    "a call without its output": (
        item(type="function_call", call_id="c", name="f", arguments="{}"), "input[1]", INVALID),
    "an output without its call": (
        item(type="function_call_output", call_id="c", output="x"), "input[1].call_id", INVALID),
    "too long a prompt": ({"input": "word " * 4000}, "input", "context_length_exceeded"),
    "too long a last input": (
        {"input": "word " * 4000, "truncation": "auto"}, "input", "context_length_exceeded"),
}  # fmt: skip

COMPLETIONS_REFUSALS: dict[str, Refusal] = {
    **SHARED,
    "best_of beyond n": ({"n": 2, "best_of": 3}, "best_of", UNSUPPORTED),
    "too many choices": ({"prompt": ["x"] * 9, "n": 128}, "n", INVALID),
    **ranges(
        ("max_tokens", (-1, 1.5, "8", True)),
        ("echo", (1, "yes")),
        ("logprobs", (True, -1, 1.5, "2", 21)),
        ("prompt_logprobs", (True, -1, "2", 99)),
        *CHOICE_RANGES,
        ("prompt", (5, {}, True)),
    ),
    "prompt missing": ({"prompt": None}, "prompt", INVALID),
    "an empty prompt": ({"prompt": ""}, "prompt", INVALID),
    "no prompts": ({"prompt": []}, "prompt", INVALID),
    "one of two empty": ({"prompt": ["a", ""]}, "prompt", INVALID),
    "an id that does not exist": ({"prompt": [10**6]}, "prompt", INVALID),
    "too many prompts": ({"prompt": ["x"] * 300}, "prompt", INVALID),
    "a suffix": ({"suffix": "x"}, "suffix", UNSUPPORTED),
    "too long a prompt": ({"prompt": "word " * 4000}, "prompt", "context_length_exceeded"),
    "a cap beyond the context": ({"max_tokens": 4000}, "max_tokens", "context_length_exceeded"),
    "a chat's field": ({"messages": USER}, "messages", UNKNOWN),
    "tools": ({"tools": []}, "tools", UNKNOWN),
}

REFUSALS: dict[str, dict[str, Refusal]] = {
    CHAT: CHAT_REFUSALS | FORM_REFUSALS[CHAT],
    RESPONSES: RESPONSES_REFUSALS | FORM_REFUSALS[RESPONSES],
    COMPLETIONS: COMPLETIONS_REFUSALS | FORM_REFUSALS[COMPLETIONS],
    MESSAGES: ANTHROPIC_REFUSALS | FORM_REFUSALS[MESSAGES],
}
CASES = [(path, name) for path, table in REFUSALS.items() for name in table]
