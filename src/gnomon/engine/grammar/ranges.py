"""Sets of characters."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = list[tuple[int, int]]
"""Code points, as sorted ranges with both ends included."""

TOP = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted ranges that neither overlap nor touch."""
    found: Ranges = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def complement(ranges: Ranges) -> Ranges:
    """Every other code point."""
    found: Ranges = []
    at = 0
    for low, high in merged(ranges):
        if low > at:
            found.append((at, low - 1))
        at = high + 1
    if at <= TOP:
        found.append((at, TOP))
    return found


def without(ranges: Ranges, banned: Ranges) -> Ranges:
    """Ranges without some code points."""
    return complement(complement(ranges) + banned)


def overlap(a: Ranges, b: Ranges) -> bool:
    """Whether two sets have a code point in common."""
    return any(low <= other and first <= high for low, high in a for first, other in b)
