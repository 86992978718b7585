"""What the kernels are meant to reach, and whether a run's lines show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.kernels.measured import Measured
from benchmarks.kernels.step import DENSE


class Missing(LookupError):
    """A line that a target needs was not measured in this run."""


@dataclass(frozen=True)
class Run:
    """The lines of a run.

    Attributes:
        lines: in the order they were measured.
        ceiling: bytes a second of a kernel that only reads, in the same run.
    """

    lines: Sequence[Measured]
    ceiling: float

    def line(self, kernel: str, shape: str, layout: str = "mxfp4") -> Measured:
        """The line of a kernel, a shape and a layout."""
        for line in self.lines:
            if (line.kernel, line.shape, line.layout) == (kernel, shape, layout):
                return line
        raise Missing(f"{kernel}, {shape}, {layout}")

    def share(self, *of: str) -> float:
        """A line's share of the read ceiling."""
        line = self.line(*of)
        return line.nbytes / (line.time_us * 1e-6) / self.ceiling

    def tflops(self, *of: str) -> float:
        """A line's floating-point operations a second, in units of 10^12."""
        line = self.line(*of)
        return line.flops / line.time_us * 1e-6

    def faster(self, of: tuple[str, ...], than: tuple[str, ...]) -> float:
        """How many times as fast one line is as another."""
        return self.line(*than).time_us / self.line(*of).time_us


@dataclass(frozen=True)
class Target:
    """One row of the table.

    Attributes:
        name: what is meant.
        wanted: the bound, and ...
        unit: ... its unit.
        value: what a run shows.
        at_most: the bound is an upper one.
    """

    name: str
    wanted: float
    unit: str
    value: Callable[[Run], float]
    at_most: bool = False

    def met(self, value: float) -> bool:
        """Whether a value is on the right side of the bound."""
        return value <= self.wanted if self.at_most else value >= self.wanted


SELECT = "select, e4m3 queries"
_VERIFY = "32 x 131,072, 4 heads x 4 rows"
_ONE = "32 x 131,072, 1 heads x 1 rows"
_LONG = "1 x 1,048,576, 1 heads x 1 rows"
_LONG_VERIFY = "1 x 1,048,576, 4 heads x 4 rows"
_SPARSE = "64 requests, 4 KV heads x 1 rows"
_SPARSE_VERIFY = "64 requests, 4 KV heads x 8 rows"
_WIDTH = "32 x 16,384, 4 heads x 1 row, table of {} tokens"
_STEP = "8 x 1,048,576, 64 heads x 1 row"
_PREFILL_STEP = "8,192 rows at 1,048,576, 64 heads"
_CHUNK = "8,192 rows at 131,072, 4 heads"
_CHUNK_LISTS = "8,192 rows at 131,072, 64 heads, lists of 16 random blocks"

TARGETS = (
    Target("select, 32 x 131,072, 4 heads x 4 rows", 0.85, "of the read ceiling",
           lambda r: r.share(SELECT, _VERIFY)),
    Target("the same against bf16", 3.1, "times as fast",
           lambda r: r.faster((SELECT, _VERIFY), ("select, bf16 queries", _VERIFY, "bf16"))),
    Target("select, 32 x 131,072, 1 head x 1 row", 0.88, "of the read ceiling",
           lambda r: r.share(SELECT, _ONE)),
    Target("select, 1 x 1,048,576, 1 row", 0.75, "of the read ceiling",
           lambda r: r.share(SELECT, _LONG)),
    Target("select, 1 x 1,048,576, 16 rows", 0.75, "of the read ceiling",
           lambda r: r.share(SELECT, _LONG_VERIFY)),
    Target("NVFP4 select against MXFP4, 4 heads x 4 rows", 1.1, "of the time",
           lambda r: r.faster((SELECT, _VERIFY), (SELECT, _VERIFY, "nvfp4")), at_most=True),
    Target("page table of 1 M tokens against 16 k", 1.02, "of the time",
           lambda r: r.faster((SELECT, _WIDTH.format("16,384")),
                              (SELECT, _WIDTH.format("1,048,576"))), at_most=True),
    Target("sparse decode, 64 requests x 4 KV heads", 0.65, "of the read ceiling",
           lambda r: r.share("sparse decode", _SPARSE)),
    Target("NVFP4 sparse decode against MXFP4", 1.1, "of the time",
           lambda r: r.faster(("sparse decode", _SPARSE), ("sparse decode", _SPARSE, "nvfp4")),
           at_most=True),
    Target("sparse verify, 8 rows, against 1 row", 3.0, "times the time",
           lambda r: r.faster(("sparse decode", _SPARSE), ("sparse decode", _SPARSE_VERIFY)),
           at_most=True),
    Target("attention step, 8 x 1,048,576, against dense bf16 by cuDNN", 20, "times as fast",
           lambda r: r.faster(("attention step", _STEP), (DENSE, _STEP, "bf16"))),
    Target("prefill select, 8,192 rows at 131,072, 4 heads", 600, "TFLOP/s",
           lambda r: r.tflops("prefill select, e4m3 queries", _CHUNK)),
    Target("prefill sparse attention, 8,192 rows at 131,072, 64 heads", 250, "TFLOP/s",
           lambda r: r.tflops("sparse prefill", _CHUNK_LISTS)),
    Target("prefill attention step at 1,048,576 against dense bf16 by cuDNN", 20, "times as fast",
           lambda r: r.faster(("attention step", _PREFILL_STEP), (DENSE, _PREFILL_STEP, "bf16"))),
    Target("write, 8,192 tokens", 0.60, "of the read ceiling",
           lambda r: r.share("write", "8,192 tokens, 64 + 8 heads")),
)  # fmt: skip


def check(run: Run) -> list[dict[str, object]]:
    """Every target whose lines were measured: name, bound, value, met."""
    rows: list[dict[str, object]] = []
    for target in TARGETS:
        try:
            value = target.value(run)
        except Missing:
            continue
        rows.append({
            "target": target.name, "wanted": target.wanted, "unit": target.unit,
            "at_most": target.at_most, "value": round(value, 3), "met": target.met(value),
        })  # fmt: skip
    return rows
