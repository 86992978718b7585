"""Confidence intervals: Wilson for proportions, cluster bootstrap for latencies."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from statistics import NormalDist
from typing import TypeVar

from gnomon.harness.evidence.verdicts import Interval
from gnomon.harness.stats.percentiles import interpolate

Item = TypeVar("Item")

MIN_CLUSTERS = 8
RESAMPLES = 1000


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Wilson score interval of a proportion (Wilson 1927); right even at 0 of n and n of n.

    Raises:
        ValueError: n is below 1 or the successes are not within 0..n.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"a proportion needs n >= 1 and 0 <= successes <= n: {successes} of {n}")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    rate = successes / n
    denominator = 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / denominator
    half = z / denominator * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # At the ends one bound is exact; rounding must not push it past the estimate.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(low=low, high=high, level=level, method="Wilson score")


def cluster_bootstrap(
    values: Sequence[float],
    clusters: Sequence[Hashable],
    statistic: Callable[[Sequence[float]], float],
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """Percentile bootstrap that resamples whole clusters; None when there are too few.

    Requests of one session tree share a prefix, a queue and a moment, so they are not independent:
    resampling requests would give an interval that is too narrow.

    Args:
        values: observations.
        clusters: the session tree of each observation, same length.
        statistic: from sorted observations to a number.
        level: coverage.
        resamples: number of bootstrap samples.
        seed: makes the interval reproducible.

    Raises:
        ValueError: the lengths differ.
    """
    if len(values) != len(clusters):
        raise ValueError(f"{len(values)} values but {len(clusters)} cluster labels")
    pairs = list(zip(values, clusters, strict=True))
    return tree_bootstrap(
        pairs,
        lambda pair: pair[1],
        lambda sample: statistic(sorted(value for value, _ in sample)),
        level=level,
        resamples=resamples,
        seed=seed,
    )


def tree_bootstrap(
    items: Sequence[Item],
    tree_of: Callable[[Item], Hashable],
    statistic: Callable[[Sequence[Item]], float | None],
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """Percentile bootstrap over whole session trees for any statistic; None with too few trees.

    Args:
        items: observations, such as the requests of a replay.
        tree_of: the session tree of one.
        statistic: from a sample of items to a number; None where that sample has none, which
            leaves the resample out.
        level: coverage.
        resamples: number of bootstrap samples.
        seed: makes the interval reproducible.
    """
    groups: dict[Hashable, list[Item]] = defaultdict(list)
    for item in items:
        groups[tree_of(item)].append(item)
    if len(groups) < MIN_CLUSTERS:
        return None
    members = list(groups.values())
    rng = random.Random(seed)
    estimates = []
    for _ in range(resamples):
        sample = [item for group in rng.choices(members, k=len(members)) for item in group]
        estimate = statistic(sample)
        if estimate is not None:
            estimates.append(estimate)
    if not estimates:
        return None
    estimates.sort()
    return Interval(
        low=interpolate(estimates, (1 - level) / 2),
        high=interpolate(estimates, 1 - (1 - level) / 2),
        level=level,
        method=f"bootstrap over {len(groups)} session trees",
    )
