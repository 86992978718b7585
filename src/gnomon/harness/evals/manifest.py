"""Suite manifests: the exact case ids a suite is made of, and their identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Manifest:
    """The cases of a suite; its denominator, fixed before anything is asked.

    Attributes:
        suite: its name.
        scope: ``smoke``, ``diagnostic`` or ``full``.
        client: distribution that holds the cases.
        client_version: exact; other versions may hold other cases under the same ids.
        cases: case ids by category, in order.
        sha256: over everything above.
    """

    suite: str
    scope: str
    client: str
    client_version: str
    cases: Mapping[str, tuple[str, ...]]
    sha256: str

    @property
    def ids(self) -> tuple[tuple[str, str], ...]:
        """Every case as (category, id), in order."""
        return tuple((category, case) for category, ids in self.cases.items() for case in ids)


def load_manifest(suite: str) -> Manifest:
    """The committed manifest of a suite.

    Raises:
        ValueError: a case is listed twice.
    """
    text = (files("gnomon.harness.evals.manifests") / f"{suite}.json").read_text()
    raw = json.loads(text)
    cases = {category: tuple(ids) for category, ids in raw["cases"].items()}
    flat = [case for ids in cases.values() for case in ids]
    if len(set(flat)) != len(flat):
        raise ValueError(f"the manifest of {suite} lists a case twice")
    canonical = json.dumps(raw, sort_keys=True, separators=(",", ":"))
    return Manifest(
        suite=raw["suite"],
        scope=raw["scope"],
        client=raw["client"],
        client_version=raw["client_version"],
        cases=cases,
        sha256=hashlib.sha256(canonical.encode()).hexdigest(),
    )
