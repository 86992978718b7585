"""From what a run saw to its verdicts: pure functions, one list of checks a verdict.

Parts of a run that were planned and did not happen appear as checks that were not run, so that a
run cut short never looks better than one that went on.
"""

from __future__ import annotations

from gnomon.harness.evidence.integration import integration_verdict
from gnomon.harness.evidence.performance import performance_verdict
from gnomon.harness.evidence.quality import quality_verdict
from gnomon.harness.evidence.seen import Evidence
from gnomon.harness.evidence.verdicts import Verdicts
from gnomon.harness.recipes.point import Point


def judge(point: Point, seen: Evidence) -> Verdicts:
    """All three verdicts of a run, whatever its state."""
    return Verdicts(
        integration=integration_verdict(point, seen),
        quality=quality_verdict(point, seen),
        performance=performance_verdict(point, seen),
    )
