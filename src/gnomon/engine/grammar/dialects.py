"""How models write reasoning and calls, as far as a grammar must know it.

For every dialect whatever its grammar allows is read back by its parser as it was meant.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from gnomon.engine.grammar.ebnf import literal


class Avoid(Enum):
    """What JSON text must not hold, because the parser around it would take it for a marker."""

    NOTHING = ""
    BRACKETS = "]<]"
    ANGLE = "<"


@dataclass(frozen=True)
class Thinking:
    """Reasoning between two markers.

    Attributes:
        ends: markers that end it too.
    """

    opener: str
    closer: str
    ends: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tags:
    """Arguments between tags.

    Attributes:
        opener: the tag before a value, by its key and JSON type.
        closer: the tag behind it, by its key.
        key: which keys a tag can name.
        excluded: what raw text must not hold; all of it begins with ``first``.
        nested: containers may be written as elements; else they are JSON text.
        typed: tags name the JSON type.
    """

    opener: Callable[[str, str], str]
    closer: Callable[[str], str]
    key: re.Pattern[str]
    excluded: tuple[str, ...]
    first: str
    nested: bool = False
    typed: bool = False


@dataclass(frozen=True)
class Dialect:
    """How a model writes calls.

    Attributes:
        markers: what free content must not hold.
        opener: before the calls.
        closer: behind them.
        between: between two calls.
        call: body of what comes before the arguments, by the function and the names of all.
        call_end: behind the arguments.
        tags: None if arguments are JSON text.
        avoid: what JSON must not hold between tags, and as content where calls may come.
        channel: markers that may be around content.
    """

    markers: tuple[str, ...]
    opener: str
    closer: str
    between: str
    call: Callable[[str, Collection[str]], str]
    call_end: str
    tags: Tags | None
    avoid: Avoid
    channel: tuple[str, str] | None = None


M3_NAMESPACE = "]<]minimax[>["

MINIMAX_M3 = Dialect(
    markers=(M3_NAMESPACE,),
    opener=f"{M3_NAMESPACE}<tool_call>\n",
    closer=f"{M3_NAMESPACE}</tool_call>",
    between="",
    call=lambda name, _: literal(f'{M3_NAMESPACE}<invoke name="{name}">'),
    call_end=f"{M3_NAMESPACE}</invoke>\n",
    tags=Tags(
        opener=lambda key, _: f"{M3_NAMESPACE}<{key}>",
        closer=lambda key: f"{M3_NAMESPACE}</{key}>",
        key=re.compile(r"(?!/|\s|invoke|tool_call)[^>\]\[]{1,200}(?<!\s)"),
        excluded=("]<]",),
        first="]",
        nested=True,
    ),
    avoid=Avoid.BRACKETS,
)

MINIMAX_M2 = Dialect(
    markers=("<minimax:tool_call>",),
    opener="<minimax:tool_call>\n",
    closer="</minimax:tool_call>",
    between="",
    call=lambda name, _: literal(f'<invoke name="{name}">\n'),
    call_end="</invoke>\n",
    tags=Tags(
        opener=lambda key, _: f'<parameter name="{key}">',
        closer=lambda _: "</parameter>\n",
        key=re.compile(r"(?!\s)[^<>\"]{1,200}(?<!\s)"),
        excluded=(
            "<minimax:tool_call>", "</minimax:tool_call>", "<invoke name=", "</invoke>",
            "<parameter name=", "</parameter>",
        ),
        first="<",
    ),
    avoid=Avoid.ANGLE,
)  # fmt: skip

_OPEN, _CLOSE, _SEP = "<|open|>", "<|close|>", "<|sep|>"


def _k3_call(name: str, _: Collection[str]) -> str:
    begin, end = literal(f'{_OPEN}call tool="{name}" index="'), literal(f'"{_SEP}')
    return f"{begin} [1-9] [0-9]{{0,2}} {end}"


KIMI_K3 = Dialect(
    markers=(_OPEN, _CLOSE),
    opener=f"{_OPEN}tools{_SEP}",
    closer=f"{_CLOSE}tools{_SEP}",
    between="",
    call=_k3_call,
    call_end=f"{_CLOSE}call{_SEP}",
    tags=Tags(
        opener=lambda key, kind: f'{_OPEN}argument key="{html.escape(key)}" type="{kind}"{_SEP}',
        closer=lambda _: f"{_CLOSE}argument{_SEP}",
        key=re.compile(r".{1,200}", re.DOTALL),
        excluded=(_OPEN, _CLOSE),
        first="<",
        typed=True,
    ),
    avoid=Avoid.ANGLE,
    channel=(f"{_OPEN}response{_SEP}", f"{_CLOSE}response{_SEP}"),
)


def _k2_call(name: str, names: Collection[str]) -> str:
    prefix = "" if f"functions.{name}" in names else "functions."
    begin = literal(f"<|tool_call_begin|>{prefix}{name}:")
    return f"{begin} [0-9] [0-9]{{0,3}} {literal('<|tool_call_argument_begin|>')}"


KIMI_K2 = Dialect(
    markers=("<|tool_call",),
    opener="<|tool_calls_section_begin|>",
    closer="<|tool_calls_section_end|>",
    between="",
    call=_k2_call,
    call_end="<|tool_call_end|>",
    tags=None,
    avoid=Avoid.ANGLE,
)

HERMES = Dialect(
    markers=("<tool_call>",),
    opener="",
    closer="",
    between="\n",
    call=lambda name, _: literal(f'<tool_call>\n{{"name": "{name}", "arguments": '),
    call_end="}\n</tool_call>",
    tags=None,
    avoid=Avoid.ANGLE,
)

DIALECTS: dict[str, Dialect] = {
    "minimax_m3": MINIMAX_M3,
    "minimax_m2": MINIMAX_M2,
    "kimi_k2": KIMI_K2,
    "kimi_k3": KIMI_K3,
    "hermes": HERMES,
}
"""By the names of their parsers."""

M3_THINKING = Thinking("<mm:think>", "</mm:think>")
