"""Prefill: selection and sparse attention of a chunk at the end of a long context."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.kernels.measured import FP4, GROUP, RULE, Measured
from benchmarks.kernels.pages import BLOCK, DIM, Work, build
from benchmarks.kernels.timing import seconds
from gnomon.engine.attention.rows import Selection
from gnomon.engine.attention.triton.backend import TritonBackend
from gnomon.engine.layouts.geometry import geometry
from gnomon.engine.options import CacheFormat

CHUNK = 8192
ROW_BY_ROW = "sparse prefill, a program a row and head"


def worst_lists(work: Work, heads: int) -> Selection:
    """Lists that share as little as can be: the own block, and fifteen random ones a row and head.

    Rows of a prompt share most of their blocks; kernels that live off that would look better on
    such lists. One block of each fifteenth of the past, so that all differ.
    """
    own = (work.rows.positions // BLOCK)[:, None, None].expand(-1, heads, 1)
    nth = torch.arange(RULE.topk_blocks - 1, device="cuda")
    draw = torch.rand(len(own), heads, len(nth), device="cuda")
    history = ((nth + draw) * own / len(nth)).long()
    return Selection(torch.cat((history, own), -1).contiguous())


def attended_flops(work: Work, heads: int) -> int:
    """Both products of every query head with the 16 blocks of its list."""
    return 4 * BLOCK * DIM * heads * GROUP * RULE.topk_blocks * work.rows.num_rows


def scored_flops(work: Work, heads: int) -> int:
    """The products of every index query with the keys of the blocks before its own."""
    history = int((work.rows.positions // BLOCK).sum())
    return 2 * DIM * heads * history * BLOCK


def select(backend: TritonBackend) -> Iterator[Measured]:
    """Selection: e4m3 products for e4m3 queries over MXFP4, exact bf16 ones otherwise."""
    e4m3, bf16 = torch.float8_e4m3fn, torch.bfloat16
    for context, heads in ((131072, 4), (131072, 1), (32768, 4), (1048576, 4)):
        shape = f"{CHUNK:,} rows at {context:,}, {heads} heads"
        runs = [(fmt, e4m3) for fmt in FP4]
        if (context, heads) == (131072, 4):
            runs = [(CacheFormat.BF16, bf16), *runs, (CacheFormat.MXFP4, bf16)]
        for fmt, dtype in runs:
            work = build(fmt, 1, context, CHUNK, heads, kv=False)
            q = torch.randn(CHUNK, heads, DIM, device="cuda").to(dtype)
            time = seconds([partial(backend.select, work.cache, work.rows, q, RULE)], 5)
            page = geometry(fmt, BLOCK, DIM, "index").page_bytes
            name = "prefill select, " + ("e4m3 queries" if dtype == e4m3 else "bf16 queries")
            flops = scored_flops(work, heads)
            yield Measured(name, shape, fmt.value, time * 1e6, work.pages * page, flops)


def sparse(backend: TritonBackend) -> Iterator[Measured]:
    """Attention to lists that share as little as can be; bf16 by the kernel a row and head."""
    for context, heads in ((131072, 4), (131072, 1), (1048576, 4)):
        shape = f"{CHUNK:,} rows at {context:,}, {heads * GROUP} heads, lists of 16 random blocks"
        runs = [CacheFormat.BF16] if (context, heads) == (131072, 4) else []
        for fmt in (*runs, *FP4):
            work = build(fmt, 1, context, CHUNK, heads, kv=True)
            q = torch.randn(CHUNK, heads * GROUP, DIM, device="cuda").bfloat16()
            lists = worst_lists(work, heads)
            time = seconds([partial(backend.sparse, work.cache, work.rows, q, lists)], 5)
            nbytes = 2 * q.nbytes + work.pages * work.cache.pages.block_bytes
            name = ROW_BY_ROW if fmt is CacheFormat.BF16 else "sparse prefill"
            flops = attended_flops(work, heads)
            yield Measured(name, shape, fmt.value, time * 1e6, nbytes, flops)
