"""What ``gnomon claims check`` prints, and its exit status."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.text import Text

from gnomon.harness.command import NOT_PROVEN, OK, REFUSED
from gnomon.harness.evidence.claims import ClaimsRefused, Status, check, read_claims

_STYLES = {
    Status.HOLDS: "green",
    Status.STALE: "yellow",
    Status.CONTRADICTED: "bold red",
    Status.UNPROVEN: "yellow",
}


def check_command(path: Path, *, as_json: bool) -> int:
    """Check every claim of a file against its record; a contradicted one fails."""
    try:
        claims = read_claims(path)
    except ClaimsRefused as error:
        Console(stderr=True, highlight=False).print(Text(str(error), "red"), soft_wrap=True)
        return REFUSED
    found = [check(claim, path.resolve().parent) for claim in claims]
    counts = Counter(each.status for each in found)
    if as_json:
        listed = [
            {"status": each.status, "why": each.why, **each.claim.model_dump(exclude_unset=True)}
            for each in found
        ]
        print(json.dumps({"claims": listed, "counts": counts}, indent=2))
    else:
        out = Console(highlight=False)
        for each in found:
            line = Text.assemble((f"{each.status:<13}", _STYLES[each.status]), each.claim.id)
            out.print(line, soft_wrap=True)
            out.print(Text(f"{'':<13}{each.claim.says} ({each.claim.scope})"), soft_wrap=True)
            out.print(Text(f"{'':<13}{each.why}", "dim"), soft_wrap=True)
        told = ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])
        out.print(f"{len(found)} claims: {told or 'none'}")
    return NOT_PROVEN if counts[Status.CONTRADICTED] else OK
