"""``python -m benchmarks.kernels``: time the kernels against the read ceiling of the same run."""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from pathlib import Path

import torch
import triton

from benchmarks.kernels.cases import CASES
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
    print(f"{torch.cuda.get_device_name()}: read ceiling {ceiling / 1e12:.2f} TB/s", flush=True)
    lines = []
    for name in args.only:
        for line in CASES[name](backend):
            share = line.nbytes / ceiling / (line.time_us * 1e-6)
            lines.append(asdict(line) | {"share_of_read_ceiling": round(share, 4)})
            print(
                f"{line.kernel:28} {line.shape:58} {line.layout:6} {line.time_us:9.1f} us "
                f"{line.nbytes / 1e6:8.1f} MB {share:6.1%}",
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
