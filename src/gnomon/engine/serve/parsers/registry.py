"""Parsers by the names the command line accepts."""

from __future__ import annotations

from gnomon.engine.errors import OptionsError
from gnomon.engine.serve.parsers.base import ReasoningDialect, ToolDialect
from gnomon.engine.serve.parsers.m3_reasoning import M3ReasoningDialect
from gnomon.engine.serve.parsers.m3_tools import M3ToolDialect

DEFAULT = "minimax_m3"
NONE = "none"

REASONING: dict[str, ReasoningDialect] = {DEFAULT: M3ReasoningDialect()}
TOOLS: dict[str, ToolDialect] = {DEFAULT: M3ToolDialect()}


def reasoning_dialect(name: str) -> ReasoningDialect | None:
    """The reasoning dialect of that name; None for "none".

    Raises:
        OptionsError: the name is unknown; the message lists the known ones.
    """
    if name == NONE:
        return None
    if name not in REASONING:
        raise _unknown("--reasoning-parser", name, tuple(REASONING))
    return REASONING[name]


def tool_dialect(name: str) -> ToolDialect | None:
    """The tool-call dialect of that name; None for "none".

    Raises:
        OptionsError: the name is unknown; the message lists the known ones.
    """
    if name == NONE:
        return None
    if name not in TOOLS:
        raise _unknown("--tool-call-parser", name, tuple(TOOLS))
    return TOOLS[name]


def _unknown(flag: str, name: str, known: tuple[str, ...]) -> OptionsError:
    return OptionsError(f"{flag} {name!r} is unknown; choose one of {', '.join((*known, NONE))}")
