"""Prefix-cache counters of the server, read by the harness itself before and after a replay."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gnomon.harness.nouns import ServerAddress
from gnomon.harness.replay.results import CacheHits

CACHE_COUNTERS: tuple[tuple[str, str], ...] = (
    ("gnomon:prefix_cache_hits_total", "gnomon:prefix_cache_queries_total"),
    ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
)
"""Counters of tokens found in the prefix cache and of tokens looked up, by engine."""

_TIMEOUT_S = 10.0


def read_metrics_page(server: ServerAddress) -> str | None:
    """The server's metrics page, or None where there is none to be had."""
    headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
    try:
        with httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as client:
            response = client.get(server.metrics_url, headers=headers)
    except httpx.HTTPError:
        return None
    return response.text if response.status_code == httpx.codes.OK else None


def sums(page: str) -> Mapping[str, float]:
    """Each sample's value by name, summed over its labels."""
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals


def cache_hits_between(before: str | None, after: str | None) -> CacheHits | None:
    """Tokens found and looked up between two readings; None without a known pair of counters.

    A counter that went down means that the server restarted in between: that is no reading.
    """
    if before is None or after is None:
        return None
    first, last = sums(before), sums(after)
    for hits, queries in CACHE_COUNTERS:
        if hits in last and queries in last:
            found = round(last[hits] - first.get(hits, 0.0))
            asked = round(last[queries] - first.get(queries, 0.0))
            if found < 0 or asked < 0:
                return None
            return CacheHits(found, asked, f"difference of the server's {hits} and {queries}")
    return None
