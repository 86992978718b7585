from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon.harness.evidence.figures import replay_figures
from gnomon.harness.evidence.verdicts import Scope
from gnomon.harness.replay.results import ReplayResult, RequestRecord
from gnomon.harness.stats.intervals import MIN_CLUSTERS, tree_bootstrap
from gnomon.harness.stats.measures import (
    QUANTILES,
    Goodput,
    Limits,
    PromptSources,
    Throughput,
    Window,
    clipped_throughput,
    drained_throughput,
    goodput,
    latency_per_token,
    one_value,
    rate_at,
    session_tree,
)
from gnomon.harness.stats.metrics import METRICS, Direction, Tail
from gnomon.harness.stats.percentiles import interpolate


def request(start_s: float = 0.0, end_s: float = 10.0, **changes: Any) -> RequestRecord:
    fields: dict[str, Any] = {
        "request_id": "r",
        "conversation_id": "trace",
        "turn_index": 0,
        "agent_depth": 0,
        "start_s": start_s,
        "end_s": end_s,
        "ttft_ms": 0.0,
        "itl_ms": 10.0,
        "latency_ms": (end_s - start_s) * 1000,
        "input_tokens": 1000,
        "output_tokens": 100,
    }
    return RequestRecord(**{**fields, **changes})


# Golden vectors.


def test_percentiles_are_linear_between_observations() -> None:
    values = [0.01, 0.02, 0.03, 0.05]
    assert [round(interpolate(values, q), 6) for q in (0.5, 0.75, 0.9, 0.95)] == [
        *(0.025, 0.035, 0.044, 0.047)
    ]


def test_interactivity_is_one_over_a_percentile_of_the_latency() -> None:
    itl_s = [0.05, 0.01, 0.03, 0.02]
    assert rate_at(itl_s, 0.5) == pytest.approx(40.0)
    assert rate_at(itl_s, 0.9) == pytest.approx(22.72727, abs=5e-6)


def test_normalised_interactivity_inverts_the_percentile_of_each_request_s_own_ratio() -> None:
    records = [
        request(0, seconds, output_tokens=tokens)
        for seconds, tokens in ((10, 500), (4, 100), (30, 1000), (6, 50))
    ]
    measured = [latency_per_token(record) for record in records]
    ratios = [ratio for ratio in measured if ratio is not None]
    assert ratios == pytest.approx([0.02, 0.04, 0.03, 0.12])
    assert rate_at(ratios, 0.5) == pytest.approx(28.57143, abs=5e-6)
    assert rate_at(ratios, 0.9) == pytest.approx(10.41667, abs=5e-6)


@given(st.lists(st.floats(1e-4, 10), min_size=2, max_size=40))
def test_a_higher_percentile_never_promises_a_faster_token(latencies: list[float]) -> None:
    rates = [rate_at(latencies, quantile) for quantile in QUANTILES]
    assert rates == sorted(rates, reverse=True)
    slowest, fastest = 1 / max(latencies), 1 / min(latencies)
    assert all(slowest * 0.999999 <= rate <= fastest * 1.000001 for rate in rates)


@pytest.mark.parametrize("latencies", [[], [0.0, 1.0], [-1.0]])
def test_a_rate_without_latencies_above_zero_is_refused(latencies: list[float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        rate_at(latencies, 0.5)


# Throughput.


def test_a_straggler_lowers_drained_throughput_and_not_that_of_the_window() -> None:
    short = [request(start, start + 10) for start in (0, 10, 20)]
    straggler = request(20, 320)
    drained = drained_throughput([*short, straggler])
    clipped = clipped_throughput([*short, straggler], Window(0, 30))
    assert drained is not None
    assert clipped is not None
    assert drained.output == pytest.approx(400 / 320)
    assert clipped.output == pytest.approx((300 + 100 * 10 / 300) / 30)
    assert clipped.input == pytest.approx(4000 / 30)


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0.5, 50)), min_size=1, max_size=20),
    st.floats(1, 99),
)
def test_two_halves_of_a_window_hold_what_the_whole_holds(
    spans: list[tuple[float, float]], cut: float
) -> None:
    records = [request(start, start + length) for start, length in spans]
    whole = clipped_throughput(records, Window(0, 100.5))
    left = clipped_throughput(records, Window(0, cut))
    right = clipped_throughput(records, Window(cut, 100.5))
    assert whole is not None
    assert left is not None
    assert right is not None
    for name in ("input", "output"):
        parts = getattr(left, name) * left.seconds + getattr(right, name) * right.seconds
        assert parts == pytest.approx(getattr(whole, name) * whole.seconds)
    assert whole.output * whole.seconds == pytest.approx(100 * len(records))


def test_a_token_at_the_end_of_a_window_belongs_to_the_next() -> None:
    one = request(0, 10, ttft_ms=10_000.0, output_tokens=1)
    assert clipped_throughput([one], Window(0, 10)) == Throughput(0.0, 0.0, 10)
    assert clipped_throughput([one], Window(10, 20)) == Throughput(100.0, 0.1, 10)


def test_nothing_measured_has_no_throughput() -> None:
    assert drained_throughput([]) is None
    assert drained_throughput([request(error="500", output_tokens=None)]) is None
    assert clipped_throughput([request()], Window(5, 5)) is None


def test_per_gpu_divides_by_the_whole_deployment() -> None:
    each = Throughput(800.0, 80.0, 10.0).per_gpu(8)
    assert (each.input, each.output, each.total, each.seconds) == (100.0, 10.0, 110.0, 10.0)
    with pytest.raises(ValueError, match="at least 1"):
        each.per_gpu(0)


# Goodput.


def test_a_failed_request_stays_in_both_denominators() -> None:
    good = [request(0, 10), request(0, 10)]
    failed = request(0, 20, error="500", ttft_ms=None, itl_ms=None, latency_ms=None)
    assert goodput([*good, failed], Limits()) == Goodput(2, 3, 20.0)
    assert goodput(good, Limits()) == Goodput(2, 2, 10.0)
    assert Goodput(2, 3, 20.0).share == pytest.approx(2 / 3)
    assert Goodput(2, 3, 20.0).per_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("changes", "limits", "met"),
    [
        ({"ttft_ms": 500.0}, Limits(ttft_ms=500), True),
        ({"ttft_ms": 501.0}, Limits(ttft_ms=500), False),
        ({"ttft_ms": None}, Limits(ttft_ms=500), False),
        ({"itl_ms": None, "output_tokens": 1}, Limits(itl_ms=20), True),
        ({"itl_ms": None}, Limits(itl_ms=20), False),
        ({"itl_ms": 21.0}, Limits(itl_ms=20), False),
        ({}, Limits(latency_ms=9_999), False),
        ({"cancelled": True}, Limits(), False),
        ({"error": "500"}, Limits(), False),
        ({}, Limits(ttft_ms=1, itl_ms=10, latency_ms=10_000), True),
    ],
)
def test_a_good_request_keeps_to_every_limit(
    changes: dict[str, Any], limits: Limits, met: bool
) -> None:
    assert limits.met_by(request(**changes)) is met


# Counters of the engine.


def test_the_second_tier_is_not_the_device_s_cache_under_another_name() -> None:
    counters = {
        "prompt_tokens_cached": 900.0,
        "prompt_tokens_restored": 60.0,
        "prompt_tokens_computed": 40.0,
    }
    sources = PromptSources.of(counters)
    assert sources is not None
    assert sources.shares == pytest.approx(
        {"prompt_cached_share": 0.9, "prompt_restored_share": 0.06, "prompt_reused_share": 0.96}
    )
    assert set(sources.shares) <= set(METRICS)
    assert PromptSources.of({"prompt_tokens_cached": 900.0}) is None
    assert PromptSources.of(dict.fromkeys(counters, 0.0)) is None


@pytest.mark.parametrize(
    ("replicas", "per", "value"),
    [
        ([10.0, 10.0, 10.0, 10.0], "copy", 10.0),  # not 40: InferenceX #3115
        ([10.0, 11.0], "copy", None),
        ([10.0, 11.0], "engine", 21.0),
        ([10.0], "server", 10.0),
        ([10.0, 11.0], "server", None),
        ([], "engine", None),
    ],
)
def test_replicas_are_summed_only_where_each_is_a_part(
    replicas: list[float], per: str, value: float | None
) -> None:
    assert one_value(replicas, per) == value


# Intervals and the registry.


def test_a_throughput_has_an_interval_over_session_trees() -> None:
    records = [
        request(i, i + 10, conversation_id=f"t{i % 12}" + ("::sa:1" if i % 5 == 0 else ""))
        for i in range(60)
    ]
    assert len({session_tree(record) for record in records}) == 12

    def output(sample: Any) -> float | None:
        measured = clipped_throughput(sample, Window(0, 60))
        return measured.output if measured is not None else None

    interval = tree_bootstrap(records, session_tree, output, resamples=200)
    assert interval is not None
    estimate = output(records)
    assert estimate is not None
    assert interval.low <= estimate <= interval.high
    few = [record for record in records if session_tree(record) < "t2"]
    assert len({session_tree(record) for record in few}) < MIN_CLUSTERS
    assert tree_bootstrap(few, session_tree, output) is None


def test_resamples_without_a_value_are_left_out() -> None:
    items = [(tree, tree % 2) for tree in range(10)]
    interval = tree_bootstrap(items, lambda item: item[0], lambda _: None, resamples=20)
    assert interval is None


def test_figures_of_a_replay_invert_the_latency_and_its_interval(
    make_replay: Callable[..., ReplayResult],
) -> None:
    figures = {f.metric: f for f in replay_figures(make_replay(), Scope.SMOKE).latency}
    for name in ("p50", "p75", "p90"):
        rate, latency = figures[f"interactivity.{name}"], figures[f"itl_ms.{name}"]
        assert rate.value == pytest.approx(1000 / latency.value)
        assert rate.n == latency.n
    assert figures["interactivity.p90"].value < figures["interactivity.p50"].value
    assert figures["normalised_interactivity.p50"].value == pytest.approx(20.0)  # 20 tokens in 1 s


def test_rates_per_user_are_the_only_inverted_tails() -> None:
    inverted = {metric.id for metric in METRICS.values() if metric.tail is Tail.INVERTED}
    assert inverted == {"interactivity", "normalised_interactivity"}
    direct = {metric.id for metric in METRICS.values() if metric.tail is Tail.DIRECT}
    assert direct == {"ttft_ms", "itl_ms", "request_latency_ms"}
    assert all(METRICS[name].direction is Direction.LOWER for name in direct)
