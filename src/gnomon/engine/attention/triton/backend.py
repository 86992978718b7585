"""The Triton backend: the reference's operations as GPU kernels."""

from __future__ import annotations

from typing import Literal

import torch
import triton

from gnomon.engine.attention.checks import check_write
from gnomon.engine.attention.cuda import attend as cuda_attend
from gnomon.engine.attention.cuda import build
from gnomon.engine.attention.cuda import prefill_select as cuda_prefill_select
from gnomon.engine.attention.cuda import prefill_sparse as cuda_prefill_sparse
from gnomon.engine.attention.cuda import select as cuda_select
from gnomon.engine.attention.heads import HeadNorms, Queries, Rotation
from gnomon.engine.attention.reference.project import project as reference_project
from gnomon.engine.attention.rows import RowBatch, Selection, SelectionRule
from gnomon.engine.attention.triton.dense import dense
from gnomon.engine.attention.triton.launch import Arithmetic
from gnomon.engine.attention.triton.plan import Plans, unselected
from gnomon.engine.attention.triton.project import project
from gnomon.engine.attention.triton.select import select
from gnomon.engine.attention.triton.sparse import sparse
from gnomon.engine.attention.triton.write import write_field
from gnomon.engine.cache.pools import LayerCache

#: From so many rows of one request on, sparse attention goes by page instead of by row.
_PREFILL_ROWS = 128
_KERNELS = ("select", "prefill_select", "attend", "prefill_sparse")
#: Dense attention of more rows of one request than this takes them together, in Triton.
_DENSE_ROWS = 8


class TritonBackend:
    """Implements :class:`gnomon.engine.attention.backend.AttentionBackend`; see there for shapes.

    With ``TRITON_INTERPRET=1`` in the environment the same kernels run on a CPU, slowly.

    Args:
        kernels: "hopper" to use the CUDA C++ kernels of :mod:`gnomon.engine.attention.cuda` for
            the steps they cover (they are compiled at first use), "triton" for Triton alone.
        strict: refuse NaN and Inf on the way into the cache instead of storing the largest finite
            code and counting; waits for the device on every write.
        index_dtype: dtype of the index queries that :meth:`project` makes if it is not told
            otherwise: float8_e4m3fn for the fastest selection over 4-bit pages, None for the
            projection's.
    """

    name = "triton"

    def __init__(
        self,
        *,
        kernels: Literal["hopper", "triton"] = "triton",
        strict: bool = False,
        index_dtype: torch.dtype | None = None,
    ) -> None:
        self.strict = strict
        self.index_dtype = index_dtype
        self._plans = Plans()
        self._hopper = kernels == "hopper"
        interpreted = bool(triton.knobs.runtime.interpret)
        processors = 1 if interpreted else torch.cuda.get_device_properties().multi_processor_count
        self._arithmetic = Arithmetic(interpreted, processors)
        if self._hopper:
            for kernel in _KERNELS:  # now, not in the middle of a step
                build.load(kernel)
            cuda_select.counters(torch.device("cuda", torch.cuda.current_device()))

    def project(
        self,
        cache: LayerCache,
        rows: RowBatch,
        projected: torch.Tensor,
        norms: HeadNorms,
        turn: Rotation,
        index_dtype: torch.dtype | None = None,
    ) -> Queries:
        """Norm, rotate and store in one kernel; a strict backend does it in steps.

        Raises:
            NonFiniteCacheInput: ``strict`` and a value for the cache is NaN or Inf.
            ValueError: an index branch without an index page, or the reverse; or the rows count
                blocks of another size than the pages.
        """
        check_write(cache, rows, has_index=norms.has_index)
        index_dtype = index_dtype or self.index_dtype
        if self.strict:
            return reference_project(cache, rows, projected, norms, turn, index_dtype, strict=True)
        return project(cache, rows, projected, norms, turn, index_dtype, self._arithmetic)

    def write(
        self,
        cache: LayerCache,
        rows: RowBatch,
        k: torch.Tensor,
        v: torch.Tensor,
        index_k: torch.Tensor | None,
    ) -> None:
        """Quantise and store every row that has a slot.

        Raises:
            NonFiniteCacheInput: ``strict`` and a value is NaN or Inf.
            ValueError: an index key without an index page, or the reverse; or the rows count
                blocks of another size than the pages.
        """
        check_write(cache, rows, has_index=index_k is not None)
        fields = [(cache.k, cache.k_layout, k), (cache.v, cache.v_layout, v)]
        if index_k is not None and cache.index is not None and cache.index_layout is not None:
            fields.append((cache.index, cache.index_layout, index_k.unsqueeze(1)))
        if self.strict:
            for _, layout, x in fields:
                layout.quantise(x[rows.slots >= 0], strict=True)
        for pool, layout, x in fields:
            write_field(pool, layout, x, rows, cache.sanitised)

    def select(
        self, cache: LayerCache, rows: RowBatch, index_q: torch.Tensor, rule: SelectionRule
    ) -> Selection:
        """Choose blocks; see :func:`gnomon.engine.attention.triton.select.select`."""
        chosen = self._select_hopper(cache, rows, index_q, rule) if self._hopper else None
        if chosen is not None:
            return Selection(chosen)
        return select(cache, rows, index_q, rule, self._plans, self._arithmetic)

    def _select_hopper(
        self, cache: LayerCache, rows: RowBatch, index_q: torch.Tensor, rule: SelectionRule
    ) -> torch.Tensor | None:
        """Requests of few rows by one kernel, those of many by another.

        None if one of them is needed and does not cover the step.
        """
        if cache.index_layout is None:
            return None
        geometry, heads = cache.index_layout.geometry, index_q.shape[1]
        most = cuda_select.MAX_QUERIES // heads
        few = self._plans.tiles(rows, rows.num_rows, up_to=most)  # a request is one tile
        many = self._plans.tiles(rows, cuda_prefill_select.QUERIES // heads, longer_than=most)
        if few.count and not cuda_select.fits(geometry, index_q, few.widest, few.count, rule):
            return None
        if many.count and not cuda_prefill_select.fits(geometry, index_q, rule):
            return None
        if not few.count and not many.count:
            return None
        shape = (rows.num_rows, heads, rule.topk_blocks)
        chosen = unselected(few.rows + many.rows, shape, index_q.device)
        if few.count:
            cuda_select.select(cache, rows, index_q, rule, few.bounds, few.widest, chosen)
        if many.count:
            cuda_prefill_select.select(cache, rows, index_q, rule, many, chosen)
        return chosen

    def sparse(
        self, cache: LayerCache, rows: RowBatch, q: torch.Tensor, selection: Selection
    ) -> torch.Tensor:
        """Attend to selected blocks; see :func:`gnomon.engine.attention.triton.sparse.sparse`."""
        if (
            self._hopper
            and self._plans.tiles(rows, rows.num_rows).widest >= _PREFILL_ROWS
            and cuda_prefill_sparse.fits(cache, q, selection.blocks.shape[2])
        ):
            return cuda_prefill_sparse.sparse(cache, rows, q, selection)
        if self._hopper and cuda_attend.fits(cache, q, selection):
            return cuda_attend.attend(cache, rows, q, selection, None, self._arithmetic)
        return sparse(cache, rows, q, selection, self._arithmetic)

    def dense(
        self, cache: LayerCache, rows: RowBatch, q: torch.Tensor, window: int | None = None
    ) -> torch.Tensor:
        """See :func:`gnomon.engine.attention.triton.dense.dense`."""
        if (
            self._hopper
            and rows.last_seen is None
            and self._plans.tiles(rows, rows.num_rows).widest <= _DENSE_ROWS
            and cuda_attend.fits(cache, q, None)
        ):
            return cuda_attend.attend(cache, rows, q, None, window, self._arithmetic)
        return dense(cache, rows, q, window, self._plans, self._arithmetic)
