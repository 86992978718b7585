"""Forms that cannot be demanded: change, param and code, by endpoint."""

from __future__ import annotations

from typing import Any

from tests.contract.asking import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.contract.forms import ANTHROPIC_FORM, NAMED, POINT

INVALID, UNSUPPORTED, SCHEMA = "invalid_value", "unsupported_parameter", "unsupported_schema"
BAD: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "(?=x)"}},
}
MANY = {"type": "string", "pattern": "(a|b)*a(a|b){60}"}
F: dict[str, Any] = {"name": "f", "parameters": {"type": "object", "properties": {}}}
TOOLS, FLAT = [{"type": "function", "function": F}], [{"type": "function", **F}]


def _format(**form: Any) -> dict[str, Any]:
    return {"response_format": form}


def _allowed(**members: Any) -> dict[str, Any]:
    return {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": members}}


def _flat(**members: Any) -> dict[str, Any]:
    return {"tools": FLAT, "tool_choice": {"type": "allowed_tools", **members}}


OF_FORMAT: dict[str, tuple[dict[str, Any], str, str]] = {
    "a format of another type": (_format(type="xml"), "response_format.type", UNSUPPORTED),
    "a format without a schema": (
        _format(type="json_schema"), "response_format.json_schema", INVALID),
    "a format without a name": (
        _format(type="json_schema", json_schema={"schema": POINT}),
        "response_format.json_schema.name", "missing_parameter"),
    "a format that looks ahead": (
        _format(type="json_schema", json_schema={"name": "x", "schema": BAD}),
        "response_format.json_schema.schema", SCHEMA),
    "a pattern of too many states": (
        _format(type="json_schema", json_schema={"name": "x", "schema": MANY}),
        "response_format.json_schema.schema", SCHEMA),
    "a format without an end": (
        {**_format(type="json_schema", json_schema=NAMED), "ignore_eos": True}, "ignore_eos",
        INVALID),
    "guided_regex": ({"guided_regex": "a*"}, "guided_regex", UNSUPPORTED),
    "structured_outputs": ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs",
                           UNSUPPORTED),
    "a token biased twice": ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias", INVALID),
}  # fmt: skip

FORM_REFUSALS: dict[str, dict[str, tuple[dict[str, Any], str, str]]] = {
    CHAT: {
        **OF_FORMAT,
        "a call of nobody": (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice", INVALID),
        "calls without tools": ({"tool_choice": "required"}, "tool_choice", INVALID),
        "a custom tool's choice": (
            {"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice", UNSUPPORTED),
        "allowed in no mode": (
            _allowed(tools=TOOLS), "tool_choice.allowed_tools.mode", INVALID),
        "nothing allowed": (
            _allowed(mode="auto", tools=[]), "tool_choice.allowed_tools.tools", INVALID),
        "an allowed stranger": (
            _allowed(mode="auto", tools=[{"type": "function", "function": {"name": "g"}}]),
            "tool_choice.allowed_tools.tools[0]", INVALID),
        "a strict tool that looks ahead": (
            {"tools": [{"type": "function", "function": {**F, "parameters": BAD, "strict": True}}]},
            "tools[0].function.parameters", SCHEMA),
    },
    RESPONSES: {
        "a format of another type": (
            {"text": {"format": {"type": "xml"}}}, "text.format.type", UNSUPPORTED),
        "a format that looks ahead": (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": BAD}}},
            "text.format.schema", SCHEMA),
        "nothing allowed": (_flat(mode="required", tools=[]), "tool_choice.tools", INVALID),
        "an allowed stranger": (
            _flat(mode="auto", tools=[{"type": "function", "name": "g"}]),
            "tool_choice.tools[0]", INVALID),
        "allowed in another mode": (
            _flat(mode="none", tools=[{"type": "function", "name": "f"}]),
            "tool_choice.mode", INVALID),
    },
    COMPLETIONS: OF_FORMAT,
    MESSAGES: {
        "an effort": ({"output_config": {"effort": "low"}}, "output_config.effort", UNSUPPORTED),
        "a format of another type": (
            {"output_config": {"format": {"type": "xml"}}}, "output_config.format", INVALID),
        "a format twice": (
            {"output_config": {"format": ANTHROPIC_FORM}, "output_format": ANTHROPIC_FORM},
            "output_format", INVALID),
        "a format without a schema": (
            {"output_format": {"type": "json_schema"}}, "output_format.schema", INVALID),
        "a format that looks ahead": (
            {"output_config": {"format": {"type": "json_schema", "schema": BAD}}},
            "output_config.format.schema", SCHEMA),
        "a strict tool that looks ahead": (
            {"tools": [{"name": "f", "input_schema": BAD, "strict": True}]},
            "tools[0].input_schema", SCHEMA),
    },
}  # fmt: skip
