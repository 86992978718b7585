"""From what a run saw to its verdicts: pure functions, one list of checks a verdict.

Parts of a run that were planned and did not happen appear as checks that were not run, so that a
run cut short never looks better than one that went on.
"""

from __future__ import annotations

from gnomon.harness.evidence.integration import integration_verdict
from gnomon.harness.evidence.manifest import Reused
from gnomon.harness.evidence.performance import performance_verdict
from gnomon.harness.evidence.proven import reused_verdict
from gnomon.harness.evidence.quality import quality_verdict
from gnomon.harness.evidence.seen import Evidence
from gnomon.harness.evidence.verdicts import VerdictKind, Verdicts
from gnomon.harness.recipes.point import Point


def judge(point: Point, seen: Evidence) -> Verdicts:
    """All three verdicts of a run, whatever its state."""
    return Verdicts(
        integration=integration_verdict(point, seen),
        quality=quality_verdict(point, seen),
        performance=performance_verdict(point, seen),
    )


def judge_reused(point: Point, seen: Evidence, reused: Reused) -> Verdicts:
    """Verdicts of a run that stands on another: it proves the server, the other one the figures."""
    served = point.model_copy(update={"replay": None, "evals": ()})
    return Verdicts(
        integration=integration_verdict(served, seen),
        quality=reused_verdict(VerdictKind.QUALITY, reused, point.scope),
        performance=reused_verdict(VerdictKind.PERFORMANCE, reused, point.scope),
    )
