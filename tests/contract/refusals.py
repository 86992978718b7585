"""What is refused for good, whatever else comes to be served: change, param and codes."""

from __future__ import annotations

from typing import Any

from tests.contract.asking import CHAT, COMPLETIONS, RESPONSES, USER
from tests.contract.features import CALL, WEATHER

Refusal = tuple[dict[str, Any], str | None, str]
INVALID, UNKNOWN, MISSING = "invalid_value", "unknown_parameter", "missing_parameter"
ANY = ""  # the code is not part of the contract


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
        ("min_tokens", (-1, 0.5, "x")),
        ("stream", ("yes", 1, [])),
    ),
    "a stop that is a number": ({"stop": [5]}, "stop[0]", INVALID),
    "a stop that is too long": ({"stop": ["x" * 1025]}, "stop[0]", INVALID),
    "a stop id that is negative": ({"stop_token_ids": [-1]}, "stop_token_ids[0]", INVALID),
    "no model": ({"model": None}, "model", INVALID),
    "model is a number": ({"model": 5}, "model", INVALID),
    "a misspelt field": ({"temprature": 1}, "temprature", UNKNOWN),
    "an empty field name": ({"": 1}, "", UNKNOWN),
    "a field of Python": ({"__class__": 1}, "__class__", UNKNOWN),
    "stream_options of another kind": ({"stream_options": 5}, "stream_options", INVALID),
    "an unknown stream option": ({"stream_options": {"x": 1}}, "stream_options.x", INVALID),
    "beam search": ({"use_beam_search": True}, "use_beam_search", ANY),
    "n of 0": ({"n": 0}, "n", ANY),
    "n negative": ({"n": -1}, "n", ANY),
    "n is text": ({"n": "2"}, "n", ANY),
    "n too large": ({"n": 10**6}, "n", ANY),
    "presence_penalty too large": ({"presence_penalty": 9}, "presence_penalty", ANY),
    "frequency_penalty too small": ({"frequency_penalty": -9}, "frequency_penalty", ANY),
    "repetition_penalty negative": ({"repetition_penalty": -1}, "repetition_penalty", ANY),
    "logit_bias is a list": ({"logit_bias": [1]}, "logit_bias", ANY),
}

CHAT_REFUSALS: dict[str, Refusal] = {
    **SHARED,
    **ranges(
        ("max_tokens", (0, -1, 1.5, "8", True, 10**12)),
        ("max_completion_tokens", (0, -1, 1.5, "8")),
        ("messages", (5, "hi", {})),
        ("tools", (5, "x", {})),
        ("chat_template_kwargs", (5, "x", [])),
    ),
    "messages missing": ({"messages": None}, "messages", ANY),
    "no messages": ({"messages": []}, "messages", ANY),
    "two caps": ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", ANY),
    "a cap beyond the context": ({"max_tokens": 4000}, "max_tokens", "context_length_exceeded"),
    "a message is text": ({"messages": ["hi"]}, "messages[0]", ANY),
    "a message is null": ({"messages": [None]}, "messages[0]", ANY),
    "no role": ({"messages": [{"content": "x"}]}, "messages[0].role", MISSING),
    "role root": (say(role="root", content="x"), "messages[1].role", ANY),
    "role is a number": (say(role=1, content="x"), "messages[1].role", INVALID),
    "no content": (say(role="user"), "messages[1].content", ANY),
    "content is null": (say(role="user", content=None), "messages[1].content", ANY),
    "content is a number": (say(role="user", content=1), "messages[1].content", INVALID),
    "an empty assistant": (say(role="assistant"), "messages[1].content", ANY),
    "a tool without an id": (say(role="tool", content="x"), "messages[1].tool_call_id", ANY),
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
    "a part without a type": (part(text="x"), "messages[0].content[0]", ANY),
    "a part without text": (part(type="text"), "messages[0].content[0].text", ANY),
    "a part whose text is a number": (part(type="text", text=5), "messages[0].content[0].text",
                                      ANY),
    "arguments that are no JSON": (
        call(arguments="{x"), "messages[1].tool_calls[0].function.arguments", ANY),
    "arguments that are a list": (
        call(arguments="[1]"), "messages[1].tool_calls[0].function.arguments", ANY),
    "arguments with NaN": (
        call(arguments='{"a": NaN}'), "messages[1].tool_calls[0].function.arguments", ANY),
    "a call without a name": (call(name=""), "messages[1].tool_calls[0].function.name", INVALID),
    "a call without a function": (
        say(role="assistant", tool_calls=[{"id": "c", "type": "function"}]),
        "messages[1].tool_calls[0].function", MISSING),
    "a tool of another type": (
        {"tools": [{"type": "web", "function": {"name": "f"}}]}, "tools[0].type", ANY),
    "a tool without a function": ({"tools": [{"type": "function"}]}, "tools[0].function", MISSING),
    "a tool without a name": (
        {"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", MISSING),
    "a tool's name with a blank": (function(name="a b"), "tools[0].function.name", ANY),
    "a tool's empty name": (function(name=""), "tools[0].function.name", ANY),
    "a tool's name that is too long": (function(name="x" * 200), "tools[0].function.name", ANY),
    "two tools of one name": ({"tools": function()["tools"] * 2}, "tools", ANY),
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
    "an unknown effort": ({"reasoning_effort": "huge"}, "reasoning_effort", ANY),
    "effort is a number": ({"reasoning_effort": 1}, "reasoning_effort", INVALID),
    "an unknown thinking mode": (
        {"chat_template_kwargs": {"thinking_mode": "loud"}}, None, "template_refused"),
    "the server's template variable": (
        {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", ANY),
    "functions, the older tools": ({"functions": [{"name": "f"}]}, "functions", ANY),
    "audio out": ({"modalities": ["audio"]}, "modalities", ANY),
    "guided_json": ({"guided_json": {}}, "guided_json", ANY),
    "web search": ({"web_search_options": {}}, "web_search_options", ANY),
    "a response's field": ({"max_output_tokens": 5}, "max_output_tokens", UNKNOWN),
    "a completion's field": ({"prompt": "x"}, "prompt", UNKNOWN),
    "too long a prompt": (
        {"messages": [{"role": "user", "content": "word " * 4000}]},
        None, "context_length_exceeded"),
}  # fmt: skip

RESPONSES_REFUSALS: dict[str, Refusal] = {
    **SHARED,
    **ranges(
        ("max_output_tokens", (0, -1, 1.5, "8", True)),
        ("input", (5, {}, True)),
        ("instructions", (5, [])),
        ("metadata", (5, "x")),
        ("store", ("yes", 1)),
    ),
    "input missing": ({"input": None}, "input", ANY),
    "no input": ({"input": []}, "input", ANY),
    "an item is text": ({"input": ["x"]}, "input[0]", ANY),
    "role root": (item(role="root", content="x"), "input[1].role", ANY),
    "an unknown item": (item(type="computer_call"), "input[1].type", ANY),
    "an image": (item(role="user", content=[{"type": "input_image", "image_url": "x"}]),
                 "input[1].content[0]", "unsupported_content_part"),
    "a file": (item(role="user", content=[{"type": "input_file", "file_id": "x"}]),
               "input[1].content[0]", "unsupported_content_part"),
    "a call without an id": (
        item(type="function_call", name="f", arguments="{}"), "input[1].call_id", ANY),
    "an output without an id": (
        item(type="function_call_output", output="x"), "input[1].call_id", ANY),
    "arguments that are no JSON": (
        item(type="function_call", call_id="c", name="f", arguments="{x"),
        "input[1].arguments", ANY),
    "a cap beyond the context": (
        {"max_output_tokens": 4000}, "max_output_tokens", "context_length_exceeded"),
    "an unknown effort": ({"reasoning": {"effort": "huge"}}, "reasoning.effort", ANY),
    "an unknown reasoning option": ({"reasoning": {"x": 1}}, "reasoning.x", INVALID),
    "a nested tool": (
        {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name", MISSING),
    "a tool of another type": (
        {"tools": [{"type": "web_search", "name": "w"}]}, "tools[0].type", ANY),
    "a schema of an array": (
        {"tools": [{"type": "function", "name": "f", "parameters": {"type": "array"}}]},
        "tools[0].parameters", "invalid_function_parameters"),
    "a chat's field": ({"messages": USER}, "messages", UNKNOWN),
    "another cap": ({"max_tokens": 5}, "max_tokens", UNKNOWN),
    "background": ({"background": True}, "background", ANY),
    "metadata of numbers": ({"metadata": {"a": 1}}, "metadata.a", INVALID),
}  # fmt: skip

COMPLETIONS_REFUSALS: dict[str, Refusal] = {
    **SHARED,
    **ranges(
        ("max_tokens", (0, -1, 1.5, "8", True)),
        ("prompt", (5, {}, True)),
    ),
    "prompt missing": ({"prompt": None}, "prompt", ANY),
    "an empty prompt": ({"prompt": ""}, "prompt", ANY),
    "no prompts": ({"prompt": []}, "prompt", ANY),
    "one of two empty": ({"prompt": ["a", ""]}, "prompt", ANY),
    "an id that does not exist": ({"prompt": [10**6]}, "prompt", ANY),
    "too many prompts": ({"prompt": ["x"] * 300}, "prompt", ANY),
    "a suffix": ({"suffix": "x"}, "suffix", ANY),
    "too long a prompt": ({"prompt": "word " * 4000}, None, "context_length_exceeded"),
    "a cap beyond the context": ({"max_tokens": 4000}, "max_tokens", "context_length_exceeded"),
    "a chat's field": ({"messages": USER}, "messages", UNKNOWN),
    "tools": ({"tools": []}, "tools", UNKNOWN),
}

REFUSALS: dict[str, dict[str, Refusal]] = {
    CHAT: CHAT_REFUSALS,
    RESPONSES: RESPONSES_REFUSALS,
    COMPLETIONS: COMPLETIONS_REFUSALS,
}
CASES = [(path, name) for path, table in REFUSALS.items() for name in table]
