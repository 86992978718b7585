"""Norm, rotate and store what a layer's projection made of a step's rows."""

from __future__ import annotations

import torch

from gnomon.engine.attention.heads import HeadNorms, Queries, Rotation, gemma_norm_fp32, rotate
from gnomon.engine.attention.reference.write import write
from gnomon.engine.attention.rows import RowBatch
from gnomon.engine.cache.pools import LayerCache
from gnomon.engine.layouts.fp8 import E4M3_MAX


def project(
    cache: LayerCache,
    rows: RowBatch,
    projected: torch.Tensor,
    norms: HeadNorms,
    turn: Rotation,
    index_dtype: torch.dtype | None = None,
    *,
    strict: bool = False,
) -> Queries:
    """Norm q, k, index q and index k per head, rotate them, and store keys and values.

    Everything is fp32 inside and rounded once, to the projection's dtype, before keys are
    quantised.

    Args:
        cache: the layer's pages, changed in place.
        rows: R rows; slot -1 writes nothing.
        projected: [R, columns]: q, k, v, then index q and index k if the layer has them; heads
            side by side.
        norms: the weights.
        turn: angles of the rows, for the main and the index branch.
        index_dtype: dtype of the index queries: float8_e4m3fn (nearest, saturating) or, by
            default, the projection's.
        strict: see :func:`gnomon.engine.attention.reference.write.write`.

    Raises:
        NonFiniteCacheInput: ``strict`` and a value for the cache is NaN or Inf.
        ValueError: an index branch without an index page, or the reverse; or the rows count blocks
            of another size than the pages.
    """
    widths = norms.widths(projected.shape[1], cache.pages.kv_heads)
    q, k, v, *index = projected.split(widths, dim=-1)

    def headed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (-1, len(weight)))
        return rotate(gemma_norm_fp32(heads, weight, norms.eps), turn).to(projected.dtype)

    index_q, index_k = None, None
    if norms.index_q is not None and norms.index_k is not None:
        index_q = as_index_queries(headed(index[0], norms.index_q), index_dtype)
        index_k = headed(index[1], norms.index_k)[:, 0]
    values = v.unflatten(-1, (-1, len(norms.k)))
    write(cache, rows, headed(k, norms.k), values, index_k, strict=strict)
    return Queries(headed(q, norms.q), index_q)


def as_index_queries(x: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Index queries x in ``dtype``, None leaving them as they are; e4m3 saturates, NaN stays."""
    if dtype is None or dtype == x.dtype:
        return x
    return x.float().clamp(-E4M3_MAX, E4M3_MAX).to(dtype)
