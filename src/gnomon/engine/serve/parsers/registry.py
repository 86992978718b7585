"""Parsers by the names the command line accepts."""

from __future__ import annotations

from gnomon.engine.errors import OptionsError
from gnomon.engine.serve.parsers.base import ReasoningDialect, ToolDialect
from gnomon.engine.serve.parsers.hermes import HermesToolDialect
from gnomon.engine.serve.parsers.k3 import K3ReasoningDialect, K3ToolDialect
from gnomon.engine.serve.parsers.kimi_k2 import SECTION_MARKERS, KimiK2ToolDialect
from gnomon.engine.serve.parsers.m2_tools import M2ToolDialect
from gnomon.engine.serve.parsers.m3_reasoning import M3ReasoningDialect
from gnomon.engine.serve.parsers.m3_tools import M3ToolDialect
from gnomon.engine.serve.parsers.think import ThinkDialect

DEFAULT = "minimax_m3"
NONE = "none"

_THINK = ThinkDialect("<think>", "</think>")

REASONING: dict[str, ReasoningDialect] = {
    DEFAULT: M3ReasoningDialect(),
    "think": _THINK,
    "deepseek_r1": _THINK,
    "minimax_m2": _THINK,
    "kimi_k2": ThinkDialect("<think>", "</think>", ends=SECTION_MARKERS),
    "kimi_k3": K3ReasoningDialect(),
}
TOOLS: dict[str, ToolDialect] = {
    DEFAULT: M3ToolDialect(),
    "minimax_m2": M2ToolDialect(),
    "kimi_k2": KimiK2ToolDialect(),
    "kimi_k3": K3ToolDialect(),
    "hermes": HermesToolDialect(),
}


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
