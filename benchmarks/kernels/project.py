"""Norm, rope, quantisation and scatter of a step's projection."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.kernels.measured import FP4, GROUP, Measured
from benchmarks.kernels.pages import BLOCK, DIM
from benchmarks.kernels.timing import seconds
from gnomon.engine.attention.heads import HeadNorms, rotation
from gnomon.engine.attention.rows import RowBatch
from gnomon.engine.attention.triton.backend import TritonBackend
from gnomon.engine.cache.pools import build_pools
from gnomon.engine.layouts.geometry import LayerPages, geometry
from gnomon.engine.options import CacheFormat

_HEADS = 4
_BLOCKS = 512


def weights(index: bool = True) -> HeadNorms:
    """Random norm weights."""
    q, k, iq, ik = (0.1 * torch.randn(DIM, device="cuda").bfloat16() for _ in range(4))
    return HeadNorms(q, k, iq if index else None, ik if index else None, 1e-6)


def projection(tokens: int, heads: int, index: bool = True) -> torch.Tensor:
    """What a layer's projection gives: bf16 [tokens, columns]."""
    columns = heads * (GROUP + 2) + (heads + 1 if index else 0)
    return torch.randn(tokens, columns * DIM, device="cuda").bfloat16()


def step_bytes(cache_bytes: int, x: torch.Tensor, heads: int, index: bool = True) -> int:
    """Bytes in (the projection) and out (queries, pages) of a step; index queries in e4m3."""
    return x.nbytes + len(x) * (heads * GROUP * DIM * 2 + index * heads * DIM) + cache_bytes


def project(backend: TritonBackend) -> Iterator[Measured]:
    """Prefill chunks, verify and decode widths; layers with and without an index branch."""
    for tokens, index in ((8192, True), (8192, False), (512, True), (64, True)):
        for fmt in (CacheFormat.BF16, CacheFormat.FP8, *FP4):
            key, value = geometry(fmt, BLOCK, DIM, "key"), geometry(fmt, BLOCK, DIM, "value")
            own = geometry(fmt, BLOCK, DIM, "index") if index else None
            pages = LayerPages(_HEADS, key, value, own)
            cache = build_pools([pages], _BLOCKS, "cuda").layers[0]
            first = torch.randperm(_BLOCKS * BLOCK, device="cuda")[:tokens]
            if tokens > BLOCK:  # a request's own pages in order, as prefill has them
                first = torch.arange(tokens, device="cuda")
            x = [projection(tokens, _HEADS, index) for _ in range(3)]
            rows = [_rows_at((first + i * 8192) % (_BLOCKS * BLOCK)) for i in range(len(x))]
            norms, turn = weights(index), rotation(first, 5e6, DIM // 2)
            dtype = torch.float8_e4m3fn if index else None
            calls = [
                partial(backend.project, cache, r, y, norms, turn, dtype)
                for r, y in zip(rows, x, strict=True)
            ]
            made = tokens * pages.block_bytes // BLOCK
            name = "write" if index else "write, no index branch"
            yield Measured(
                name, f"{tokens:,} tokens, {_HEADS * GROUP} + {2 * _HEADS} heads", fmt.value,
                seconds(calls) * 1e6, step_bytes(made, x[0], _HEADS, index),
            )  # fmt: skip


def _rows_at(slots: torch.Tensor) -> RowBatch:
    """Rows of one request at given slots."""
    zero = torch.zeros_like(slots)
    return RowBatch(slots, slots, zero, zero[:1, None], zero[:1] + len(slots), BLOCK)
