"""``python -m benchmarks.kernels``: time the kernels against the read ceiling of the same run."""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from pathlib import Path

import torch
import triton

from benchmarks.kernels.cases import CASES, STAND_IN
from benchmarks.kernels.timing import read_ceiling
from gnomon.engine.attention.triton.backend import TritonBackend


def main() -> None:
    """Measure, print a table, and write a JSON record if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--out", type=Path, help="where the JSON record goes")
    parser.add_argument("--commit", default="unknown", help="commit that is measured")
    args = parser.parse_args()
    backend = TritonBackend(kernels="hopper")
    ceiling = read_ceiling()
    print("kernel, shape, layout, time, bytes, share of the ceiling; speed over bf16's, stand-in's")
    print(f"{torch.cuda.get_device_name()}: read ceiling {ceiling / 1e12:.2f} TB/s", flush=True)
    lines: list[dict[str, object]] = []
    for name in args.only:
        bf16: dict[str, float] = {}  # by shape
        stand_in: dict[str, float] = {}
        for line in CASES[name](backend):
            if line.layout == "bf16":
                (stand_in if line.kernel == STAND_IN else bf16).setdefault(line.shape, line.time_us)
            ratios = {
                "times_as_fast_as_bf16": bf16.get(line.shape, 0.0) / line.time_us,
                "times_as_fast_as_stand_in": stand_in.get(line.shape, 0.0) / line.time_us,
            }
            share = line.nbytes / ceiling / (line.time_us * 1e-6)
            shown = {key: round(value, 2) for key, value in ratios.items() if value}
            lines.append(asdict(line) | {"share_of_read_ceiling": round(share, 4)} | shown)
            print(
                f"{line.kernel:27} {line.shape:56} {line.layout:6}{line.time_us:8.1f} us"
                f"{line.nbytes / 1e6:8.1f} MB {share:6.1%} "
                + " ".join(
                    f"{value:6.2f} x" if value else "      -  " for value in ratios.values()
                ),
                flush=True,
            )
        torch.cuda.empty_cache()
    record = {
        "command": "python -m benchmarks.kernels",
        "commit": args.commit,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "read_ceiling_bytes_per_s": round(ceiling),
        "measured": lines,
    }
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
