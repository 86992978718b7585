"""Decode and verify: the shapes that are measured, kernel by kernel."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.kernels import peers
from benchmarks.kernels.measured import FP4, GROUP, RULE, STAND_IN, Measured, copies
from benchmarks.kernels.pages import BLOCK, DIM, Work, build
from benchmarks.kernels.timing import seconds
from gnomon.engine.attention.rows import Selection
from gnomon.engine.attention.triton.backend import TritonBackend
from gnomon.engine.layouts.geometry import geometry
from gnomon.engine.options import CacheFormat


def select(backend: TritonBackend) -> Iterator[Measured]:
    """Selection for decode and verify rows."""
    shapes = [
        (32, 131072, 4, 4), (32, 131072, 1, 1), (32, 131072, 4, 1), (1, 1048576, 1, 1),
        (1, 1048576, 4, 4), (64, 32768, 4, 1), (64, 32768, 4, 4), (8, 524288, 4, 1),
        (32, 131072, 4, 8),
    ]  # fmt: skip
    e4m3, bf16 = torch.float8_e4m3fn, torch.bfloat16
    for requests, context, heads, rows in shapes:
        shape = f"{requests} x {context:,}, {heads} heads x {rows} rows"
        runs = [(CacheFormat.BF16, bf16), *((fmt, e4m3) for fmt in FP4)]
        if requests == 32:
            runs += [(fmt, bf16) for fmt in (CacheFormat.FP8, *FP4)]
        for fmt, dtype in runs:
            page = geometry(fmt, BLOCK, DIM, "index").page_bytes
            nbytes = requests * (context // BLOCK - 1) * page
            works = [build(fmt, requests, context, rows, heads, kv=False)
                     for _ in range(copies(nbytes))]  # fmt: skip
            q = torch.randn(requests * rows, heads, DIM, device="cuda").to(dtype)
            time = seconds([partial(backend.select, w.cache, w.rows, q, RULE) for w in works])
            name = "select, e4m3 queries" if dtype == e4m3 else "select, bf16 queries"
            yield Measured(name, shape, fmt.value, time * 1e6, nbytes)
            if dtype == e4m3:
                time = _after_a_copy(backend, works, q)
                yield Measured(f"{name}, alone", shape, fmt.value, time * 1e6, nbytes)
            if fmt is CacheFormat.BF16:
                w = works[0]
                assert w.cache.index is not None
                raw = w.cache.index.view(bf16).view(-1, BLOCK, DIM)
                table, count = w.rows.page_table, context // BLOCK - 1
                peer = partial(peers.row_and_head_select, q, raw, table, rows, count)
                time = seconds([peer] * 2, 5)
                yield Measured(STAND_IN, shape, "bf16", time * 1e6, nbytes, peer=True)


def _after_a_copy(backend: TritonBackend, works: list[Work], q: torch.Tensor) -> float:
    """Seconds of a selection after a kernel that lets nothing start before it ends.

    In a row, the start of a call overlaps with the end of the one before. Here a copy of the
    queries comes between; its own time is taken off.
    """
    copied = torch.empty_like(q)

    def both(work: Work) -> None:
        copied.copy_(q)
        backend.select(work.cache, work.rows, copied, RULE)

    copies_alone = seconds([partial(copied.copy_, q)] * len(works))
    return seconds([partial(both, work) for work in works]) - copies_alone


def table_width(backend: TritonBackend) -> Iterator[Measured]:
    """The same batch with page tables for 16 k and for 1 M tokens."""
    for width in (128, 8192):
        works = [build(CacheFormat.MXFP4, 32, 16384, 1, 4, kv=False, width=width) for _ in range(8)]
        q = torch.randn(32, 4, DIM, device="cuda").to(torch.float8_e4m3fn)
        time = seconds([partial(backend.select, w.cache, w.rows, q, RULE) for w in works])
        shape = f"32 x 16,384, 4 heads x 1 row, table of {width * BLOCK:,} tokens"
        yield Measured("select, e4m3 queries", shape, "mxfp4", time * 1e6, 32 * 127 * 8704)


def random_selection(work: Work, heads: int, shared: float) -> Selection:
    """Lists of 16 distinct pages; rows of a request share this part of theirs."""
    rows, requests = work.rows.num_rows, work.rows.page_table.shape[0]
    per = rows // requests
    own = work.pages - 1
    order = torch.rand(requests, 1, heads, own, device="cuda").argsort(-1).expand(-1, per, -1, -1)
    lists = order[..., :15].clone()
    fresh = round(15 * (1 - shared)) if per > 1 else 0
    for i in range(per):
        lists[:, i, :, :fresh] = order[:, i, :, 15 + i * fresh : 15 + (i + 1) * fresh]
    last = torch.full((requests, per, heads, 1), own, device="cuda")
    return Selection(torch.cat((lists, last), -1).view(rows, heads, 16).contiguous())


def sparse(backend: TritonBackend) -> Iterator[Measured]:
    """Sparse attention for decode and verify rows."""
    for requests, context, heads, rows in [(64, 32768, 4, 1), (64, 32768, 4, 8), (32, 32768, 1, 1)]:
        for fmt in (CacheFormat.BF16, CacheFormat.FP8, *FP4):
            page = geometry(fmt, BLOCK, DIM, "kv").page_bytes
            distinct = 16 if rows == 1 else 16 + (rows - 1) * 4
            nbytes = requests * heads * distinct * 2 * page
            work = build(fmt, requests, context, rows, heads, kv=True)
            q = torch.randn(requests * rows, heads * GROUP, DIM, device="cuda").bfloat16()
            lists = [random_selection(work, heads, 0.75) for _ in range(copies(nbytes))]
            time = seconds([partial(backend.sparse, work.cache, work.rows, q, s) for s in lists])
            shape = f"{requests} requests, {heads} KV heads x {rows} rows"
            yield Measured("sparse decode", shape, fmt.value, time * 1e6, nbytes)


def dense(backend: TritonBackend) -> Iterator[Measured]:
    """Dense decode attention, and cuDNN's."""
    requests, context, heads = 8, 131072, 4
    for fmt in (CacheFormat.BF16, *FP4):
        nbytes = (
            requests * heads * context // BLOCK * 2 * geometry(fmt, BLOCK, DIM, "kv").page_bytes
        )
        work = build(fmt, requests, context, 1, heads, kv=True)
        q = torch.randn(requests, heads * GROUP, DIM, device="cuda").bfloat16()
        time = seconds([partial(backend.dense, work.cache, work.rows, q)], 5)
        shape = f"{requests} x {context:,}, {heads} KV heads x 1 row"
        yield Measured("dense decode", shape, fmt.value, time * 1e6, nbytes)
    k, v = (torch.randn(requests, heads, context, DIM, device="cuda").bfloat16() for _ in range(2))
    time = seconds([partial(peers.cudnn, q[:, :, None], k, v)], 5)
    nbytes = k.nbytes + v.nbytes
    yield Measured("dense decode, cuDNN", shape, "bf16", time * 1e6, nbytes, peer=True)
