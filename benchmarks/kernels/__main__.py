"""``python -m benchmarks.kernels``: time the kernels against the read ceiling of the same run."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import triton

from benchmarks.kernels.cases import CASES
from benchmarks.kernels.measured import STAND_IN, Measured
from benchmarks.kernels.targets import Run, check
from benchmarks.kernels.timing import read_ceiling
from gnomon.engine.attention.triton.backend import TritonBackend

_BF16, _PEER, _STAND_IN = "times_as_fast_as_bf16", "times_as_fast_as_peer", "as_stand_in"


def main() -> None:
    """Measure, print a table, and write a JSON record if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--out", type=Path, help="where the JSON record goes")
    parser.add_argument("--commit", default=_commit(), help="commit that is measured")
    args = parser.parse_args()
    backend = TritonBackend(kernels="hopper")
    ceiling = read_ceiling()
    started = time.monotonic()
    print("kernel, shape, layout, time, bytes, share of the ceiling, rate; then times as fast as")
    print("bf16 pages, as one program a row and head, and as the peer")
    print(f"{torch.cuda.get_device_name()}: read ceiling {ceiling / 1e12:.2f} TB/s", flush=True)
    lines: list[Measured] = []
    failed: dict[str, str] = {}
    for name in args.only:
        try:
            for line in CASES[name](backend):
                lines.append(line)
                _show(line, lines, ceiling)
        except Exception as error:  # the others are still worth their time
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}"
        torch.cuda.empty_cache()
        if args.out:  # after each case: a run that is cut short leaves what it has
            record = _record(args.commit, lines, failed, ceiling)
            args.out.write_text(json.dumps(record, indent=1) + "\n")
    print("\ntargets")
    for row in check(Run(lines, ceiling)):
        bound = "at most" if row["at_most"] else "at least"
        print(f"{'met   ' if row['met'] else 'MISSED'} {row['target']}: {row['value']}, "
              f"{bound} {row['wanted']} {row['unit']}")  # fmt: skip
    for name, reason in failed.items():
        print(f"FAILED {name}: {reason}")
    print(f"{time.monotonic() - started:.0f} s")
    if failed:
        raise SystemExit(1)


def _record(
    commit: str, lines: Sequence[Measured], failed: dict[str, str], ceiling: float
) -> dict[str, object]:
    """What a run goes into the evidence as."""
    return {
        "command": " ".join(["python -m benchmarks.kernels", *sys.argv[1:]]),
        "commit": commit,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "read_ceiling_bytes_per_s": round(ceiling),
        "targets": check(Run(lines, ceiling)),
        "failed": failed,
        "measured": [_as_json(line, lines, ceiling) for line in lines],
    }


def _commit() -> str:
    """HEAD of the checkout, if there is one."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _ratios(line: Measured, lines: Sequence[Measured]) -> dict[str, float]:
    """How many times as fast a line is as others of its shape."""
    alike = [other for other in lines if other.shape == line.shape and other is not line]
    ratios: dict[str, float] = {}
    for other in alike:
        if other.kernel == STAND_IN:
            ratios[_STAND_IN] = other.time_us / line.time_us
        elif other.peer:
            ratios[_PEER] = other.time_us / line.time_us
        elif other.layout == "bf16" and not line.peer:
            ratios.setdefault(_BF16, other.time_us / line.time_us)
    return ratios


def _as_json(line: Measured, lines: Sequence[Measured], ceiling: float) -> dict[str, object]:
    share = line.nbytes / ceiling / (line.time_us * 1e-6)
    rounded = {key: round(value, 2) for key, value in _ratios(line, lines).items()}
    rate = {"tflop_per_s": round(line.flops / line.time_us * 1e-6, 1)} if line.flops else {}
    return asdict(line) | {"share_of_read_ceiling": round(share, 4)} | rate | rounded


def _show(line: Measured, lines: Sequence[Measured], ceiling: float) -> None:
    share = line.nbytes / ceiling / (line.time_us * 1e-6)
    rate = f"{line.flops / line.time_us * 1e-6:6.0f} TFLOP/s" if line.flops else " " * 14
    ratios = _ratios(line, lines)
    shown = " ".join(
        f"{ratios[key]:6.2f} x" if key in ratios else "      - "
        for key in (_BF16, _STAND_IN, _PEER)
    )
    print(
        f"{line.kernel:34.34} {line.shape:60.60} {line.layout:6}{line.time_us:10.1f} us"
        f"{line.nbytes / 1e6:9.1f} MB {share:6.1%} {rate} {shown}",
        flush=True,
    )


if __name__ == "__main__":
    main()
