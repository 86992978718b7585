"""Time on the device, and the ceiling to compare it with."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import triton
import triton.language as tl

_REPLAYS = 15


def seconds(calls: Sequence[Callable[[], object]], replays: int = _REPLAYS) -> float:
    """Median time of one call, in seconds, inside a captured graph.

    The calls of a graph do the same work on different data, together several times the L2 cache,
    so that nothing is read twice from it; a graph of all of them is replayed and timed with device
    events. That is how a step runs its layers: launches overlap with the end of the call before.
    """
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    spans = [a.elapsed_time(b) for a, b in pairwise(marks)]
    return statistics.median(spans) * 1e-3 / len(calls)


@triton.jit
def _read_kernel(data_ptr, out_ptr, count, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.int32)
    step = tl.num_programs(0) * BLOCK
    for at in range(tl.program_id(0) * BLOCK, count, step):
        total ^= tl.load(data_ptr + at + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))


def read_ceiling() -> float:
    """Bytes a second of a kernel that only reads: the best of a few shapes over 4 GiB."""
    data = torch.randint(0, 1 << 30, (1 << 30,), device="cuda", dtype=torch.int32)
    out = torch.zeros(4096, device="cuda", dtype=torch.int32)
    best = 0.0
    for block, programs, warps in ((4096, 132 * 4, 8), (8192, 132 * 2, 8), (4096, 132 * 8, 8)):

        def call(block: int = block, programs: int = programs, warps: int = warps) -> None:
            _read_kernel[(programs,)](
                data, out, data.numel(), BLOCK=block, num_warps=warps, num_stages=4
            )

        best = max(best, data.nbytes / seconds([call], 7))
    return best
