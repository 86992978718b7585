"""Which items of a long conversation may be left out, for ``truncation: auto``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_KEPT, _USER, _ASSISTANT, _RESULT = "kept", "user", "assistant", "result"


def droppable(items: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Groups of items that may go, oldest first; an item in none of them stays.

    A turn is what the user says and everything up to where the user speaks again. All turns but
    the last may go. Of the last one steps may go: what the assistant thinks, says and calls, with
    the results; but never the last step, nor what the user said. System and developer messages
    stay.

    Args:
        items: valid, in order.

    Returns:
        Positions in ``items``.
    """
    turns = _turns([_kind(item) for item in items])
    if not turns:
        return []
    steps = _steps(items, turns[-1])
    return [*turns[:-1], *steps[:-1]]


def _kind(item: Mapping[str, Any]) -> str:
    match item.get("type", "message"):
        case "message":
            role = item.get("role")
            return role if role in (_USER, _ASSISTANT) else _KEPT
        case "function_call_output":
            return _RESULT
        case _:
            return _ASSISTANT


def _turns(kinds: Sequence[str]) -> list[list[int]]:
    found: list[list[int]] = []
    before = _ASSISTANT
    for at, kind in enumerate(kinds):
        if kind == _KEPT:
            continue
        if not found or (kind == _USER and before != _USER):
            found.append([])
        found[-1].append(at)
        before = kind
    return found


def _steps(items: Sequence[Mapping[str, Any]], turn: Sequence[int]) -> list[list[int]]:
    """Steps of a turn; one ends where all its calls have their results."""
    found: list[list[int]] = []
    waiting: set[str] = set()
    before = _RESULT
    for at in turn:
        item, kind = items[at], _kind(items[at])
        if kind == _USER:
            continue
        if not found or (kind == _ASSISTANT and before == _RESULT and not waiting):
            found.append([])
        found[-1].append(at)
        before = kind
        if kind == _RESULT:
            waiting.discard(str(item.get("call_id")))
        elif item.get("type") == "function_call":
            waiting.add(str(item.get("call_id")))
    return found
