"""Whole attention steps of a layer (write, select, attend) against dense attention by cuDNN."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.kernels import peers
from benchmarks.kernels.measured import GROUP, RULE, Measured
from benchmarks.kernels.pages import BLOCK, DIM, Work, build
from benchmarks.kernels.prefill import CHUNK
from benchmarks.kernels.project import projection, step_bytes, weights
from benchmarks.kernels.timing import seconds
from gnomon.engine.attention.heads import HeadNorms, Rotation, rotation
from gnomon.engine.attention.triton.backend import TritonBackend
from gnomon.engine.options import CacheFormat

CONTEXT = 1048576
DENSE = "dense attention, cuDNN"
_HEADS = 4


def attention_step(
    backend: TritonBackend, work: Work, x: torch.Tensor, norms: HeadNorms, turn: Rotation
) -> torch.Tensor:
    """What a sparse layer does between its projections."""
    made = backend.project(work.cache, work.rows, x, norms, turn, torch.float8_e4m3fn)
    assert made.index_q is not None
    selection = backend.select(work.cache, work.rows, made.index_q, RULE)
    return backend.sparse(work.cache, work.rows, made.q, selection)


def decode_step(backend: TritonBackend) -> Iterator[Measured]:
    """One token of eight requests of a million tokens."""
    requests = 8
    shape = f"{requests} x {CONTEXT:,}, {_HEADS * GROUP} heads x 1 row"
    norms = weights()
    for fmt in (CacheFormat.MXFP4, CacheFormat.NVFP4):
        work = build(fmt, requests, CONTEXT, 1, _HEADS, kv=True, index=True)
        turn = rotation(work.rows.positions, 5e6, DIM // 2)
        x = [projection(requests, _HEADS) for _ in range(4)]
        time = seconds([partial(attention_step, backend, work, y, norms, turn) for y in x])
        page = work.cache.pages
        assert page.index is not None
        read = requests * (
            CONTEXT // BLOCK * page.index.page_bytes
            + RULE.topk_blocks * _HEADS * (page.k.page_bytes + page.v.page_bytes)
        )
        nbytes = read + step_bytes(requests * page.block_bytes // BLOCK, x[0], _HEADS)
        yield Measured("attention step", shape, fmt.value, time * 1e6, nbytes)
        del work
        torch.cuda.empty_cache()
    k, v = (torch.randn(requests, _HEADS, CONTEXT, DIM, device="cuda", dtype=torch.bfloat16)
            for _ in range(2))  # fmt: skip
    q = torch.randn(requests, _HEADS * GROUP, 1, DIM, device="cuda").bfloat16()
    time = seconds([partial(peers.cudnn, q, k, v)], 5)
    yield Measured(DENSE, shape, "bf16", time * 1e6, k.nbytes + v.nbytes, peer=True)


def prefill_step(backend: TritonBackend) -> Iterator[Measured]:
    """A chunk at the end of a million tokens.

    Lists come from the selection, over random index keys: rows share no more of them than chance
    has it. cuDNN attends to the whole context, the chunk's own future (0.4 %) included.
    """
    shape = f"{CHUNK:,} rows at {CONTEXT:,}, {_HEADS * GROUP} heads"
    norms = weights()
    for fmt in (CacheFormat.MXFP4, CacheFormat.NVFP4):
        work = build(fmt, 1, CONTEXT, CHUNK, _HEADS, kv=True, index=True)
        turn = rotation(work.rows.positions, 5e6, DIM // 2)
        x = projection(CHUNK, _HEADS)
        time = seconds([partial(attention_step, backend, work, x, norms, turn)], 3)
        pages = work.cache.pages.block_bytes * CONTEXT // BLOCK
        nbytes = pages + step_bytes(CHUNK * work.cache.pages.block_bytes // BLOCK, x, _HEADS)
        yield Measured("attention step", shape, fmt.value, time * 1e6, nbytes)
        del work
        torch.cuda.empty_cache()
    k, v = (torch.randn(1, _HEADS, CONTEXT, DIM, device="cuda", dtype=torch.bfloat16)
            for _ in range(2))  # fmt: skip
    q = torch.randn(1, _HEADS * GROUP, CHUNK, DIM, device="cuda").bfloat16()
    time = seconds([partial(peers.cudnn, q, k, v)], 2)
    flops = 4 * DIM * _HEADS * GROUP * CHUNK * CONTEXT
    nbytes = k.nbytes + v.nbytes + 2 * q.nbytes
    yield Measured(DENSE, shape, "bf16", time * 1e6, nbytes, flops, peer=True)


def step(backend: TritonBackend) -> Iterator[Measured]:
    """Both."""
    yield from decode_step(backend)
    torch.cuda.empty_cache()
    yield from prefill_step(backend)
