from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon.harness.stats.intervals import MIN_CLUSTERS, cluster_bootstrap, wilson
from gnomon.harness.stats.metrics import METRICS, metric_of
from gnomon.harness.stats.percentiles import percentile, smallest_n

FINITE = st.floats(-1e6, 1e6)


@pytest.mark.parametrize(("quantile", "n"), [(0.5, 2), (0.9, 10), (0.95, 20), (0.99, 100)])
def test_a_percentile_needs_enough_observations_to_be_one(quantile: float, n: int) -> None:
    assert smallest_n(quantile) == n
    assert percentile([1.0] * (n - 1), quantile) is None
    assert percentile([1.0] * n, quantile) == 1.0


@given(st.lists(FINITE, min_size=10, max_size=50), st.sampled_from([0.5, 0.75, 0.9]))
def test_percentiles_interpolate_like_numpy(values: list[float], quantile: float) -> None:
    assert percentile(values, quantile) == pytest.approx(np.quantile(values, quantile))


def test_nan_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="NaN"):
        percentile([1.0, math.nan, 2.0], 0.5)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Published values of the Wilson score interval at 95 %.
    [(0, 10, 0.0, 0.2775), (1, 10, 0.0179, 0.4042), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0)],
)
def test_wilson_agrees_with_published_values(
    successes: int, n: int, low: float, high: float
) -> None:
    interval = wilson(successes, n)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_estimate_and_stays_within_bounds(case: tuple[int, int]) -> None:
    successes, n = case
    interval = wilson(successes, n)
    assert 0.0 <= interval.low <= successes / n <= interval.high <= 1.0
    assert interval.low < interval.high


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_a_proportion_of_nothing_has_no_interval(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="proportion"):
        wilson(successes, n)


def test_too_few_session_trees_give_no_interval() -> None:
    values = [float(i) for i in range(100)]
    few = [i % (MIN_CLUSTERS - 1) for i in range(100)]
    assert cluster_bootstrap(values, few, statistics.median) is None


def test_a_bootstrap_is_reproducible_and_holds_its_estimate() -> None:
    values = [float(i % 37) for i in range(200)]
    trees = [i % 20 for i in range(200)]
    first = cluster_bootstrap(values, trees, statistics.median, seed=1)
    again = cluster_bootstrap(values, trees, statistics.median, seed=1)
    assert first is not None
    assert first == again
    assert first.low <= statistics.median(values) <= first.high


def test_requests_of_one_tree_do_not_count_as_independent() -> None:
    """Whole trees that differ widen the interval, however many requests each of them has."""
    values = [float(tree) for tree in range(10) for _ in range(50)]
    trees = [tree for tree in range(10) for _ in range(50)]
    clustered = cluster_bootstrap(values, trees, statistics.mean)
    pretended = cluster_bootstrap(values, list(range(500)), statistics.mean, resamples=200)
    assert clustered is not None
    assert pretended is not None
    assert clustered.high - clustered.low > 3 * (pretended.high - pretended.low)


def test_every_metric_says_what_it_means() -> None:
    for key, metric in METRICS.items():
        assert key == metric.id
        assert all((metric.title, metric.formula, metric.unit, metric.population))
    assert metric_of("ttft_ms.p90") is METRICS["ttft_ms"]
