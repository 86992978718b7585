"""Every kernel once, on steps small enough for compute-sanitizer.

    PYTHONPATH=src:. compute-sanitizer --tool memcheck  python -m tests.kernels.sanitise
    PYTHONPATH=src:. compute-sanitizer --tool racecheck python -m tests.kernels.sanitise

Not a test: the sanitizer's exit status and summary are the result. ``--only`` picks kernels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from gnomon.engine.attention.heads import HeadNorms, rotation
from gnomon.engine.attention.rows import SelectionRule
from gnomon.engine.attention.triton.backend import TritonBackend
from gnomon.engine.cache.pools import build_pools
from gnomon.engine.layouts.geometry import LayerPages, geometry
from gnomon.engine.options import CacheFormat

from .pages import index_pages, queries
from .test_attention_gpu import world
from .test_prefill_gpu import select as prefill_select
from .test_prefill_gpu import world as prefill_world

FORMATS = (CacheFormat.MXFP4, CacheFormat.NVFP4)


def select(backend: TritonBackend) -> None:
    """Decode and verify rows."""
    for fmt in FORMATS:
        index = index_pages(fmt, [3000, 1, 700], 4)
        for rows in (index.rows(1), index.rows(4, pads=1)):
            for dtype in (torch.float8_e4m3fn, torch.bfloat16):
                backend.select(index.cache, rows, queries(rows, 4, dtype), SelectionRule(16))


def prefill(backend: TritonBackend) -> None:
    """Selection and sparse attention of a chunk."""
    for fmt in FORMATS:
        index = index_pages(fmt, [3000, 300], 4)
        rows = index.rows(70, pads=1)
        for dtype in (torch.float8_e4m3fn, torch.bfloat16):
            prefill_select(index, rows, queries(rows, 4, dtype))
        cache, rows, q, selection = prefill_world(fmt, 2, 16, 1000, 130)
        backend.sparse(cache, rows, q, selection)


def attend(backend: TritonBackend) -> None:
    """Sparse and dense attention of decode and verify rows."""
    for fmt in FORMATS:
        for per_request in (1, 4):
            cache, rows, q, selection = world(fmt, 2, 16, per_request, pads=1)
            backend.sparse(cache, rows, q, selection)
            backend.dense(cache, rows, q)


def project(backend: TritonBackend) -> None:
    """Norm, rope, quantise and scatter."""
    for fmt in (*FORMATS, CacheFormat.FP8, CacheFormat.BF16):
        key, value = geometry(fmt, 128, 128, "key"), geometry(fmt, 128, 128, "value")
        pages = LayerPages(4, key, value, geometry(fmt, 128, 128, "index"))
        cache = build_pools([pages], 4, "cuda").layers[0]
        slots = torch.randperm(512, device="cuda")[:70]
        slots[3] = -1
        index = index_pages(fmt, [70], 4)
        rows = index.rows(70)
        rows.slots.copy_(slots)
        q, k, iq, ik = (torch.randn(128, device="cuda").bfloat16() for _ in range(4))
        norms = HeadNorms(q, k, iq, ik, 1e-6)
        x = torch.randn(70, 77 * 128, device="cuda").bfloat16()
        turn = rotation(rows.positions, 5e6, 64)
        backend.project(cache, rows, x, norms, turn, torch.float8_e4m3fn)


KERNELS: dict[str, Callable[[TritonBackend], None]] = {
    "select": select,
    "prefill": prefill,
    "attend": attend,
    "project": project,
}


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(KERNELS), default=list(KERNELS))
    backend = TritonBackend(kernels="hopper")
    for name in parser.parse_args().only:
        KERNELS[name](backend)
        torch.cuda.synchronize()
        print(name, flush=True)


if __name__ == "__main__":
    main()
