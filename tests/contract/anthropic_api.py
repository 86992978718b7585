"""What Anthropic's API serves and refuses: rows of the same tables."""

from __future__ import annotations

from typing import Any

from tests.contract.asking import USER

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS: list[dict[str, Any]] = [
    {"name": "weather", "description": "Weather of a city.", "input_schema": SCHEMA}
]
USE: dict[str, Any] = {
    "type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Köln"},
}  # fmt: skip
RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "12 °C"}


def talk(assistant: Any, user: Any = "And now?") -> dict[str, Any]:
    said = [{"role": "assistant", "content": assistant}, {"role": "user", "content": user}]
    return {"messages": [*USER, *said]}


def say(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


ANTHROPIC_FEATURES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "one token": {"max_tokens": 1},
    "top_p": {"top_p": 0.5},
    "top_k": {"top_k": 5},
    "no stop sequences": {"stop_sequences": []},
    "stop sequences": {"stop_sequences": ["zz", "e"]},
    "system": {"system": "Be brief."},
    "system blocks": {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    },
    "blocks": say({"type": "text", "text": "a"}, {"type": "text", "text": "b"}),
    "history": talk("Hello."),
    "history with thinking": talk(
        [{"type": "thinking", "thinking": "They greet.", "signature": ""},
         {"type": "text", "text": "Hello."}]
    ),
    "history with a call": talk([{"type": "text", "text": "I look."}, USE], [RESULT]),
    "history with a call and a word": talk([USE], [RESULT, {"type": "text", "text": "So?"}]),
    "a result of blocks": talk(
        [USE], [{**RESULT, "content": [{"type": "text", "text": "12 °C"}], "is_error": False}]
    ),
    "a result of nothing": talk([USE], [{**RESULT, "content": []}]),
    "tools": {"tools": TOOLS},
    "tools auto": {"tools": TOOLS, "tool_choice": {"type": "auto"}},
    "tools none": {"tools": TOOLS, "tool_choice": {"type": "none"}},
    "any tool": {"tools": TOOLS, "tool_choice": {"type": "any"}, "max_tokens": 90},
    "one tool": {
        "tools": TOOLS, "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": 90,
    },
    "one call at most": {
        "tools": TOOLS, "max_tokens": 90,
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    },
    "a strict tool": {"tools": [{**TOOLS[0], "strict": True}]},
    "a custom tool": {"tools": [{**TOOLS[0], "type": "custom"}]},
    "thinking": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    "no thinking": {"thinking": {"type": "disabled"}},
    "adaptive thinking": {"thinking": {"type": "adaptive"}},
    "metadata": {"metadata": {"user_id": "someone"}},
    "service tier": {"service_tier": "auto"},
    "multi-byte": say({"type": "text", "text": "Ünïcode 漢字 😀"}),
    "markers in text": say({"type": "text", "text": "[e~[]~b]ai<mm:think>"}),
}  # fmt: skip

INVALID, UNKNOWN, MISSING = "invalid_value", "unknown_parameter", "missing_parameter"
UNSUPPORTED, PART = "unsupported_parameter", "unsupported_content_part"

ANTHROPIC_REFUSALS: dict[str, tuple[dict[str, Any], str | None, str]] = {
    **{
        f"{name}={value!r}": ({name: value}, name, INVALID)
        for name, values in (
            ("temperature", (-0.1, 2.1, "1", True)),
            ("top_p", (0, 1.1)),
            ("top_k", (-1, 1.5)),
            ("max_tokens", (0, -1, 1.5, "8", None)),
            ("stop_sequences", ("x", 5)),
            ("stream", ("yes", 1)),
            ("messages", (5, "hi", {}, [])),
            ("tools", (5, "x")),
            ("tool_choice", ("auto", 5)),
            ("thinking", ("on", True)),
            ("metadata", (5, "x")),
            ("service_tier", (5,)),
        )
        for value in values
    },
    "a field of chat": ({"seed": 5}, "seed", UNKNOWN),
    "mcp servers": ({"mcp_servers": [{"name": "x"}]}, "mcp_servers", UNSUPPORTED),
    "a container": ({"container": "x"}, "container", UNSUPPORTED),
    "an image": (
        say({"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}),
        "messages[0].content[0]", PART),
    "a document": (
        say({"type": "document", "source": {"type": "text", "data": "x"}}),
        "messages[0].content[0]", PART),
    "an image as a result": (
        talk([USE], [{**RESULT, "content": [{"type": "image", "source": {}}]}]),
        "messages[2].content[0].content[0]", PART),
    "redacted thinking": (
        talk([{"type": "redacted_thinking", "data": "x"}]), "messages[1].content[0]", PART),
    "a prefilled answer": (
        {"messages": [*USER, {"role": "assistant", "content": "Hel"}]}, "messages[1]",
        UNSUPPORTED),
    "role system": (
        {"messages": [{"role": "system", "content": "x"}]}, "messages[0].role", INVALID),
    "no role": ({"messages": [{"content": "x"}]}, "messages[0].role", MISSING),
    "a result without its call": (say(RESULT), "messages[0].content[0].tool_use_id", INVALID),
    "a call without its result": (talk([USE]), "messages[2]", INVALID),
    "a call whose input is text": (
        talk([{**USE, "input": "{}"}], [RESULT]), "messages[1].content[0].input", INVALID),
    "a tool of the vendor": (
        {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type", UNSUPPORTED),
    "a tool without a name": ({"tools": [{"input_schema": SCHEMA}]}, "tools[0].name", MISSING),
    "a schema of an array": (
        {"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools[0].input_schema",
        "invalid_function_parameters"),
    "an unknown choice": (
        {"tools": TOOLS, "tool_choice": {"type": "some"}}, "tool_choice.type", INVALID),
    "a choice of nobody": (
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice", INVALID),
    "an unknown thinking": ({"thinking": {"type": "loud"}}, "thinking.type", INVALID),
    "too long a prompt": (
        {"messages": [{"role": "user", "content": "word " * 4000}]}, "messages",
        "context_length_exceeded"),
    "a cap beyond the context": (
        {"max_tokens": 4000}, "max_tokens", "context_length_exceeded"),
}  # fmt: skip
