"""Answers whose form is demanded, at every endpoint: what is asked, and what must come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.contract.asking import CHAT, COMPLETIONS, MESSAGES, RESPONSES

Schema = dict[str, Any]


def members(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


POINT = members(x={"type": "integer", "minimum": -90, "maximum": 90}, on={"type": "boolean"})
FUNCTIONS: dict[str, Schema] = {
    "move": members(to={"enum": ["up", "down"]}),
    "wait": members(s={"type": "integer", "minimum": 1, "maximum": 60}),
    "stop": members(),
}


@dataclass(frozen=True)
class Form:
    """One row.

    Attributes:
        change: of the endpoint's base question.
        json: schema of the content; None if it must not be there.
        calls: the functions that may be called.
        least: calls there must be.
        most: calls there may be.
        strict: calls satisfy their schemas.
    """

    change: dict[str, Any]
    json: Schema | None = None
    calls: tuple[str, ...] = ()
    least: int = 1
    most: int | None = None
    strict: bool = True


def _function(name: str, strict: bool = False) -> dict[str, Any]:
    return {"name": name, "parameters": FUNCTIONS[name], "strict": strict}


def _nested(strict: bool = False) -> list[dict[str, Any]]:
    return [{"type": "function", "function": _function(name, strict)} for name in FUNCTIONS]


def _flat(strict: bool = False) -> list[dict[str, Any]]:
    return [{"type": "function", **_function(name, strict)} for name in FUNCTIONS]


OFF: dict[str, Any] = {"chat_template_kwargs": {"thinking_mode": "disabled"}}
ALL = tuple(FUNCTIONS)
OBJECT: Schema = {"type": "object"}
NAMED: Schema = {"name": "p", "schema": POINT}


def _openai(
    tools: Callable[[bool], list[dict[str, Any]]],
    form: Callable[[dict[str, Any]], dict[str, Any]],
    named: Callable[[str], dict[str, Any]],
    allowed: Callable[[str, list[str]], dict[str, Any]],
    **base: Any,
) -> dict[str, Form]:
    """Rows of the chat and the Responses API, which differ in their spelling."""
    base |= OFF
    schema = {"type": "json_schema", **NAMED}
    return {
        "json_object": Form({**base, **form({"type": "json_object"})}, OBJECT),
        "json_schema": Form({**base, **form(schema)}, POINT),
        "strict json_schema": Form({**base, **form({**schema, "strict": True})}, POINT),
        "json_schema or a call": Form(
            {**base, **form(schema), "tools": tools(False)},
            POINT, ALL, least=0, strict=False,
        ),
        "required": Form({**base, "tools": tools(False), "tool_choice": "required"}, None, ALL),
        "required and strict": Form(
            {**base, "tools": tools(True), "tool_choice": "required"}, None, ALL
        ),
        "a named function": Form(
            {**base, "tools": tools(False), "tool_choice": named("wait")}, None, ("wait",), most=1
        ),
        "one call at most": Form(
            {**base, "tools": tools(False), "tool_choice": "required",
             "parallel_tool_calls": False}, None, ALL, most=1,
        ),
        "strict": Form({**base, "tools": tools(True)}, None, ALL, least=0),
        "allowed tools": Form(
            {**base, "tools": tools(False), "tool_choice": allowed("auto", ["move"])},
            None, ("move",), least=0, strict=False,
        ),
        "allowed tools, required": Form(
            {**base, "tools": tools(False), "tool_choice": allowed("required", ["move", "wait"])},
            None, ("move", "wait"),
        ),
    }  # fmt: skip


def _chat_format(form: dict[str, Any]) -> dict[str, Any]:
    if form["type"] == "json_schema":
        form = {
            "type": "json_schema",
            "json_schema": {k: v for k, v in form.items() if k != "type"},
        }
    return {"response_format": form}


ANTHROPIC: dict[str, Any] = {
    "max_tokens": 700, "temperature": 1, "thinking": {"type": "disabled"},
}  # fmt: skip
ANTHROPIC_TOOLS = [
    {"name": name, "input_schema": schema, "strict": True} for name, schema in FUNCTIONS.items()
]
ANTHROPIC_FORM = {"type": "json_schema", "schema": POINT}

FORMS: dict[str, dict[str, Form]] = {
    CHAT: _openai(
        _nested,
        _chat_format,
        lambda name: {"type": "function", "function": {"name": name}},
        lambda mode, names: {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": mode,
                "tools": [{"type": "function", "function": {"name": name}} for name in names],
            },
        },
        max_tokens=700,
    ),
    RESPONSES: _openai(
        _flat,
        lambda form: {"text": {"format": form}},
        lambda name: {"type": "function", "name": name},
        lambda mode, names: {
            "type": "allowed_tools",
            "mode": mode,
            "tools": [{"type": "function", "name": name} for name in names],
        },
        max_output_tokens=700,
    ),
    COMPLETIONS: {
        "json_object": Form(
            {"response_format": {"type": "json_object"}, "max_tokens": 700}, OBJECT
        ),
        "json_schema": Form(
            {"response_format": {"type": "json_schema", "json_schema": NAMED}, "max_tokens": 700},
            POINT,
        ),
    },
    MESSAGES: {
        "output_config": Form({**ANTHROPIC, "output_config": {"format": ANTHROPIC_FORM}}, POINT),
        "output_format": Form({**ANTHROPIC, "output_format": ANTHROPIC_FORM}, POINT),
        "strict tools": Form(
            {**ANTHROPIC, "tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "any"}}, None, ALL
        ),
        "a named strict tool": Form(
            {
                **ANTHROPIC,
                "tools": ANTHROPIC_TOOLS,
                "tool_choice": {"type": "tool", "name": "move"},
            },
            None, ("move",), most=1,
        ),
        "json_schema or a call": Form(
            {**ANTHROPIC, "tools": ANTHROPIC_TOOLS, "output_config": {"format": ANTHROPIC_FORM}},
            POINT, ALL, least=0,
        ),
    },
}  # fmt: skip
CASES = [(path, name) for path, table in FORMS.items() for name in table]
CHANGES = {
    path: {f"form: {name}": row.change for name, row in table.items()}
    for path, table in FORMS.items()
}
"""For the table of everything that is served."""
