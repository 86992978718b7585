"""Percentiles that know when they are not one."""

from __future__ import annotations

import math
from collections.abc import Sequence


def smallest_n(quantile: float) -> int:
    """Observations needed before a quantile is more than the sample's extreme.

    Below 1 / (1 - q) observations (or 1 / q on the low side) the estimate is the maximum (or the
    minimum) under another name.

    Args:
        quantile: between 0 and 1, exclusive.
    """
    tail = min(quantile, 1.0 - quantile)
    return math.ceil(round(1.0 / tail, 9))


def percentile(values: Sequence[float], quantile: float) -> float | None:
    """Quantile by linear interpolation at position (n - 1) * q, or None when n is too small.

    Args:
        values: observations in any order; NaN is refused.
        quantile: between 0 and 1, exclusive.

    Raises:
        ValueError: the quantile is out of range or a value is NaN.
    """
    if not 0.0 < quantile < 1.0:
        raise ValueError(f"a quantile lies between 0 and 1, not at {quantile}")
    if any(math.isnan(value) for value in values):
        raise ValueError("a percentile over NaN has no meaning; drop and count these first")
    if len(values) < smallest_n(quantile):
        return None
    return interpolate(sorted(values), quantile)


def interpolate(ordered: Sequence[float], quantile: float) -> float:
    """Value at position (n - 1) * q of sorted observations; at least one is needed."""
    position = (len(ordered) - 1) * quantile
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
