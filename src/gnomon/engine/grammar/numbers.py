"""Numbers between bounds, as grammar bodies over their decimal digits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from gnomon.engine.grammar.ebnf import either

DIGITS = 15
"""Digits of the longest number written: what a double holds exactly."""

_MOST = 10**DIGITS - 1
_MAX_MULTIPLES = 1000
_MAX_DECIMALS = 9


class NoSuchNumber(Exception):
    """No number can be written between these bounds."""


@dataclass(frozen=True)
class Bounds:
    """What a number must satisfy; both ends included, None is no end."""

    low: Decimal | None = None
    high: Decimal | None = None
    low_open: bool = False
    high_open: bool = False
    multiple: Decimal | None = None

    @property
    def free(self) -> bool:
        """Whether any number will do."""
        return self.low is None and self.high is None and self.multiple is None


def integers(bounds: Bounds) -> str:
    """Body of the integers within bounds.

    Raises:
        NoSuchNumber: there is none with at most 15 digits.
    """
    low, high = _integer_ends(bounds)
    if bounds.multiple is not None:
        return _multiples(low, high, int(bounds.multiple))
    if low == -_MOST and high == _MOST:
        return f'("-"? ("0" | [1-9] [0-9]{{0,{DIGITS - 1}}}))'
    return either(_signed(low, high))


def numbers(bounds: Bounds) -> str:
    """Body of the numbers within bounds: integers and decimals, large ones with an exponent.

    Raises:
        NoSuchNumber: there is none that can be written.
    """
    if bounds.multiple is not None:
        return integers(bounds)
    if bounds.low is None and bounds.high is None:
        whole = f'("0" | [1-9] [0-9]{{0,{DIGITS - 1}}})'
        return f'("-"? {whole} ("." [0-9]{{1,{DIGITS}}})? ([eE] [+-]? [0-9] [0-9]?)?)'
    options: list[str] = []
    low, high = bounds.low, bounds.high
    if low is None or low < 0:
        top = Bounds(_negated(high), _negated(low), bounds.high_open, bounds.low_open)
        if high is None or high >= 0:
            top = Bounds(Decimal(0), top.high, True, top.high_open)
        options += [f'"-" {body}' for body in _span(top)]
    if high is None or high >= 0:
        positive = low is not None and low >= 0
        options += _span(
            Bounds(low if positive else Decimal(0), high, bounds.low_open and positive,
                   bounds.high_open)
        )  # fmt: skip
    if not options:
        raise NoSuchNumber("no number lies between its bounds")
    return either(options)


def _negated(value: Decimal | None) -> Decimal | None:
    return None if value is None else -value


def _span(bounds: Bounds) -> list[str]:
    """Non-negative numbers: whole ones, whole ones with decimals, and the two ragged ends."""
    assert bounds.low is not None
    first, last = _scaled_ends(bounds, 1)
    options = list(_plain(first, last)) if first <= last else []
    bottom = int(bounds.low)
    top = _MOST if bounds.high is None else int(bounds.high)
    ragged = [bottom] if bounds.low_open or bounds.low != bottom else []
    start, inside = bottom + len(ragged), top - 1  # units that any decimals may follow
    if start <= inside:
        options += [f'{body} "." [0-9]{{1,{DIGITS}}}' for body in _plain(start, inside)]
    if bounds.high is not None and bounds.high != top:
        ragged.append(top)
    elif first <= last == top == bounds.high:  # written with decimals, all of them zero
        options.append(f'"{top}." "0"{{1,{DIGITS}}}')
    for unit in dict.fromkeys(ragged):
        for decimals in range(1, _MAX_DECIMALS + 1):
            scale = 10**decimals
            low, high = _scaled_ends(bounds, scale)
            low, high = max(low, unit * scale), min(high, (unit + 1) * scale - 1)
            if low <= high:
                options += _fractions(low, high, decimals)
    return options


def _integer_ends(bounds: Bounds) -> tuple[int, int]:
    low, high = _scaled_ends(bounds, 1)
    if low > high:
        raise NoSuchNumber("no integer lies between its bounds")
    return low, high


def _scaled_ends(bounds: Bounds, scale: int) -> tuple[int, int]:
    """Smallest and largest integer whose value divided by ``scale`` is within bounds."""
    low, high = -_MOST, _MOST
    if bounds.low is not None:
        exact = bounds.low * scale
        found = int(exact.to_integral_value(ROUND_CEILING))
        low = max(low, found + (bounds.low_open and found == exact))
    if bounds.high is not None:
        exact = bounds.high * scale
        found = int(exact.to_integral_value(ROUND_FLOOR))
        high = min(high, found - (bounds.high_open and found == exact))
    return low, high


def _multiples(low: int, high: int, step: int) -> str:
    first, last = math.ceil(low / step), math.floor(high / step)
    if first > last:
        raise NoSuchNumber(f"no multiple of {step} lies between its bounds")
    middle = min(max(0, first), last)
    first = max(first, middle - _MAX_MULTIPLES // 2)
    last = min(last, middle + _MAX_MULTIPLES // 2)
    return either(f'"{n * step}"' for n in range(first, last + 1))


def _signed(low: int, high: int) -> Iterator[str]:
    if low < 0:
        top = -1 if high >= 0 else high
        for body in _plain(-top, -low):
            yield f'"-" {body}'
    if high >= 0:
        yield from _plain(max(low, 0), high)


def _plain(low: int, high: int) -> Iterator[str]:
    """Non-negative integers without leading zeros."""
    for width in range(len(str(low)), len(str(high)) + 1):
        start = max(low, 10 ** (width - 1) if width > 1 else 0)
        yield fixed_width(str(start), str(min(high, 10**width - 1)))


def _fractions(low: int, high: int, decimals: int) -> Iterator[str]:
    """Non-negative numbers with exactly ``decimals`` digits behind the point."""
    shortest = decimals + 1
    for width in range(max(shortest, len(str(low))), max(shortest, len(str(high))) + 1):
        start = max(low, 10 ** (width - 1) if width > shortest else 0)
        stop = min(high, 10**width - 1)
        yield fixed_width(str(start).zfill(width), str(stop).zfill(width), decimals)


def fixed_width(low: str, high: str, decimals: int = 0) -> str:
    """Digit strings of one length from ``low`` to ``high``, with a point before the last few."""
    if not low:
        return '""'
    point = '"." ' if decimals and len(low) == decimals else ""
    if set(low) == {"0"} and set(high) == {"9"}:
        if point or not decimals or len(low) < decimals:
            return f"{point}[0-9]{{{len(low)}}}"
        return f'[0-9]{{{len(low) - decimals}}} "." [0-9]{{{decimals}}}'
    first, last, rest = int(low[0]), int(high[0]), len(low) - 1
    if first == last:
        return f'{point}"{first}" {fixed_width(low[1:], high[1:], decimals)}'
    options = []
    if set(low[1:]) - {"0"}:
        options.append(f'"{first}" {fixed_width(low[1:], "9" * rest, decimals)}')
        first += 1
    tail = None
    if set(high[1:]) - {"9"}:
        tail = f'"{last}" {fixed_width("0" * rest, high[1:], decimals)}'
        last -= 1
    if first <= last:
        options.append(f"[{first}-{last}] {fixed_width('0' * rest, '9' * rest, decimals)}")
    if tail is not None:
        options.append(tail)
    return point + either(options)
