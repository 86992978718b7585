"""One line of the result, and what the shapes have in common."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon.engine.attention.rows import SelectionRule
from gnomon.engine.options import CacheFormat

RULE = SelectionRule(16)
GROUP = 16  # query heads a KV head
FP4 = (CacheFormat.MXFP4, CacheFormat.NVFP4)
STAND_IN = "one program a row and head"
_L2_BYTES = 60 << 20


@dataclass(frozen=True)
class Measured:
    """One line of the result.

    Attributes:
        kernel: what was run.
        shape: requests x context, heads and rows.
        layout: cache format of the pages read.
        time_us: median time of a call.
        nbytes: bytes the call has to read (or write) at least.
        flops: floating-point operations that count, for what is bound by them; 0: not stated.
        peer: not ours: what our kernels are compared with.
    """

    kernel: str
    shape: str
    layout: str
    time_us: float
    nbytes: int
    flops: int = 0
    peer: bool = False


def copies(nbytes: int) -> int:
    """Data sets to rotate among, so that a call finds none of its data in the L2 cache."""
    return max(2, min(8, -(-4 * _L2_BYTES // nbytes)))
