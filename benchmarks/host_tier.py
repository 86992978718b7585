"""How fast blocks move between a GPU and host memory, against one large pinned copy.

Usage: ``python -m benchmarks.host_tier [--out evidence/host_tier.json]``. One rank of MiniMax-M3.1
at tensor parallel 4: 60 layers of one KV head and an index page, blocks in a shuffled order.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gnomon.engine.cache.host_pages import HostPages
from gnomon.engine.cache.host_tier import Transfer
from gnomon.engine.cache.pools import build_pools
from gnomon.engine.layouts.geometry import LayerPages, geometry
from gnomon.engine.options import CacheFormat

BLOCKS, LAYERS, REPEATS = 512, 60, 5
FORMATS = (CacheFormat.BF16, CacheFormat.FP8, CacheFormat.MXFP4, CacheFormat.NVFP4)


def rate(nbytes: int, run: Callable[[], object]) -> float:
    """GB/s, the median of some runs after one that does not count."""
    seconds = []
    for _ in range(REPEATS + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return nbytes / statistics.median(seconds[1:]) / 1e9


def measure(fmt: CacheFormat) -> dict[str, float]:
    """Rates of saving and loading all blocks of a pool."""
    kv, index = geometry(fmt, 128, 128, "kv"), geometry(fmt, 128, 128, "index")
    pools = build_pools([LayerPages(1, kv, kv, index)] * LAYERS, BLOCKS, "cuda")
    host = HostPages(pools, BLOCKS)
    slots = random.Random(0).sample(range(BLOCKS), BLOCKS)
    found = {}
    for what, load in (("save", False), ("load", True)):
        transfers = [Transfer(block, slot, load) for block, slot in enumerate(slots)]
        found[what] = rate(pools.nbytes, lambda moved=transfers: host.run(moved))
    return found


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out: Path | None = parser.parse_args().out
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    ceiling = {
        "save": rate(1 << 30, lambda: host.copy_(device)),
        "load": rate(1 << 30, lambda: device.copy_(host)),
    }
    layouts: dict[str, dict[str, dict[str, float]]] = {}
    record = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "blocks": BLOCKS,
        "layers": LAYERS,
        "repeats": REPEATS,
        "pinned_copy_gb_s": {way: round(value, 1) for way, value in ceiling.items()},
        "layouts": layouts,
    }
    for fmt in FORMATS:
        ways = measure(fmt)
        layouts[fmt.value] = {
            way: {"gb_s": round(value, 1), "of_pinned_copy": round(value / ceiling[way], 3)}
            for way, value in ways.items()
        }
    text = json.dumps(record, indent=2)
    print(text)
    if out is not None:
        out.write_text(text + "\n")


if __name__ == "__main__":
    main()
