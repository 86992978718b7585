import pytest

from gnomon.harness.replay.counters import cache_hits_between, sums


def page(hits: float, queries: float, engine: str = "gnomon") -> str:
    return "\n".join(
        (
            f"# TYPE {engine}:prefix_cache_hits_total counter",
            f'{engine}:prefix_cache_hits_total{{rank="0"}} {hits}',
            f'{engine}:prefix_cache_hits_total{{rank="1"}} {hits}',
            f"# TYPE {engine}:prefix_cache_queries_total counter",
            f"{engine}:prefix_cache_queries_total {queries}",
            "",
        )
    )


@pytest.mark.parametrize("engine", ["gnomon", "vllm"])
def test_the_hit_rate_is_the_growth_of_both_counters(engine: str) -> None:
    hits = cache_hits_between(page(10, 100, engine), page(40, 220, engine))
    assert hits is not None
    assert (hits.hit_tokens, hits.queried_tokens, hits.rate) == (60, 120, 0.5)


def test_labels_are_summed() -> None:
    assert sums(page(3, 9))["gnomon:prefix_cache_hits_total"] == 6


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, page(1, 1)),
        (page(1, 1), None),
        (page(5, 50), page(0, 0)),  # the server restarted
        ("", "# nothing known here\nother_total 3\n"),
    ],
)
def test_without_two_readings_of_one_server_there_is_no_rate(
    before: str | None, after: str | None
) -> None:
    assert cache_hits_between(before, after) is None


def test_nothing_looked_up_is_no_rate() -> None:
    hits = cache_hits_between(page(5, 50), page(5, 50))
    assert hits is not None
    assert hits.rate is None
