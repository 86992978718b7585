"""Score pages and keep the best of them, in one pass; the rule is docs/design/selection.md.

A program holds a tile of rows of one request with all their index heads, and walks a part of the
request's pages: each page is read once for all of them. It keeps the best keys it has seen, so
nothing is stored per page. A second kernel merges the parts; keys are all different, so the
result does not depend on how pages were split.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gnomon.engine.attention.rows import RowBatch, Selection, SelectionRule
from gnomon.engine.attention.triton.codec import element, load_parts, page_code
from gnomon.engine.attention.triton.launch import Arithmetic, power_of_2
from gnomon.engine.attention.triton.plan import Plans, RowTiles, unselected
from gnomon.engine.cache.pools import LayerCache

#: (row, head) pairs a scoring program aims to hold: one tensor-core tile of decode or verify
#: rows, or a larger one when rows abound.
_FEW_QUERIES = 16
_MANY_QUERIES = 64
#: Programs wanted on the device, per multiprocessor.
_WAVES = 4
#: Bytes of candidates that a launch may take beyond 4 KB a row.
_WORKSPACE = 2 << 20
#: Rows of candidates a merging program holds.
_MERGE_ROWS = 4

NEVER = tl.constexpr(-(1 << 62))  # below the key of every score, -inf included
ID_BITS = tl.constexpr(31)
ID_MASK = tl.constexpr((1 << 31) - 1)


@triton.jit
def sort_key(score, nan, block):
    """int64 keys that order (score descending, block ascending); NaN sorts below every score."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    bits = tl.where(bits == -2147483648, 0, bits)  # -0 counts as +0
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    return tl.where(nan, NEVER, (ordered << ID_BITS) | (ID_MASK - block))


@triton.jit
def _score_kernel(
    q_ptr, positions_ptr, request_ptr, table_ptr, bounds_ptr, pool_ptr, out_ptr,
    table_width, block_size, init_blocks, local_blocks,
    HEADS: tl.constexpr, QUERIES: tl.constexpr, KEPT: tl.constexpr, SPLITS: tl.constexpr,
    ELEM: tl.constexpr, SCALE: tl.constexpr, DIM: tl.constexpr, GROUP: tl.constexpr,
    TOKENS: tl.constexpr, PAGE_BYTES: tl.constexpr, SCALE_AT: tl.constexpr,
    ARRANGED: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """Best KEPT history keys of one tile's queries over one part of its pages.

    Query m of a tile is row ``m // HEADS``, head ``m % HEADS``; out int64
    [tiles, SPLITS, QUERIES, KEPT].
    """
    tile = tl.program_id(0)
    split = tl.program_id(1)
    first = tl.load(bounds_ptr + 2 * tile)
    count = tl.load(bounds_ptr + 2 * tile + 1)
    m = tl.arange(0, QUERIES)
    j = tl.arange(0, DIM // 2)[None, :]
    t = tl.arange(0, TOKENS)[:, None]
    row = first + m // HEADS
    known = m < count * HEADS
    position = tl.load(positions_ptr + row, mask=known, other=-1)
    of_row = tl.load(request_ptr + row, mask=known, other=-1)
    live = (position >= 0) & (of_row >= 0)
    stop = tl.where(live, position // block_size + 1 - local_blocks, 0).to(tl.int32)
    request = tl.max(tl.where(live, of_row, 0))
    last = tl.max(stop)
    per_split = tl.cdiv(tl.maximum(last - init_blocks, 0), SPLITS)
    begin = init_blocks + split * per_split
    end = tl.minimum(begin + per_split, last)

    query = q_ptr + (first.to(tl.int64) * HEADS + m[:, None]) * DIM
    q0 = tl.load(query + element(j, 0, ELEM, DIM), mask=known[:, None], other=0.0).to(PRODUCT)
    q1 = tl.load(query + element(j, 1, ELEM, DIM), mask=known[:, None], other=0.0).to(PRODUCT)
    slot = tl.arange(0, KEPT)[None, :]
    best = tl.zeros((QUERIES, KEPT), tl.int64) + (
        slot.to(tl.int64) + NEVER
    )  # all keys differ, from the start
    for block in range(begin, end):
        page = tl.load(table_ptr + request * table_width + block)
        k0, k1 = load_parts(pool_ptr + page * PAGE_BYTES, t, j, t < TOKENS,
                            ELEM, SCALE, DIM, GROUP, SCALE_AT, ARRANGED)  # fmt: skip
        s = tl.dot(q0, tl.trans(k0.to(PRODUCT)), input_precision="ieee")
        s = tl.dot(q1, tl.trans(k1.to(PRODUCT)), s, input_precision="ieee")
        nan = tl.max((s != s).to(tl.int32), 1)
        score = tl.max(tl.where(s != s, float("-inf"), s), 1)
        key = sort_key(score, (nan > 0) | (block >= stop), block)[:, None]
        worst = tl.min(best, 1)[:, None]
        best = tl.where((best == worst) & (key > worst), key, best)
    at = (tile.to(tl.int64) * SPLITS + split) * QUERIES
    tl.store(out_ptr + (at + m[:, None]) * KEPT + slot, best)


@triton.jit
def _merge_kernel(
    keys_ptr, positions_ptr, request_ptr, bounds_ptr, out_ptr,
    block_size, wanted, topk, init_blocks, local_blocks, heads,
    QUERIES: tl.constexpr, KEPT: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr,
    LIST: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Merge the parts of STEP queries and append the forced blocks: out int64 [R, heads, topk]."""
    tile = tl.program_id(0)
    first = tl.load(bounds_ptr + 2 * tile)
    count = tl.load(bounds_ptr + 2 * tile + 1)
    m = tl.program_id(1) * STEP + tl.arange(0, STEP)[:, None]
    known = m < count * heads
    row = first + m // heads
    position = tl.load(positions_ptr + row, mask=known, other=-1)
    live = (position >= 0) & (tl.load(request_ptr + row, mask=known, other=-1) >= 0)

    c = tl.arange(0, WIDTH)[None, :]
    at = ((tile.to(tl.int64) * SPLITS + c // KEPT) * QUERIES + m) * KEPT + c % KEPT
    keys = tl.load(keys_ptr + at, mask=known & (c < SPLITS * KEPT), other=NEVER)
    slot = tl.arange(0, LIST)[None, :]
    chosen = tl.zeros((STEP, LIST), tl.int64) - 1
    taken = tl.zeros((STEP, 1), tl.int64)
    lowest = NEVER + KEPT  # below it lie only keys that stand for nothing
    for i in range(wanted):
        best = tl.max(keys, 1)[:, None]
        found = best >= lowest
        chosen = tl.where((slot == i) & found, ID_MASK - (best & ID_MASK), chosen)
        taken += found.to(tl.int64)
        keys = tl.where(keys == best, NEVER, keys)

    visible = position // block_size + 1
    local = tl.minimum(visible, local_blocks)
    init = tl.minimum(visible - local, init_blocks)
    nth = slot - taken  # which forced block goes here
    forced = tl.where(nth < init, nth, visible - local + (nth - init))
    forced = tl.where(nth < init + local, forced, -1)
    result = tl.where(live, tl.where(nth < 0, chosen, forced), -1)
    to = out_ptr + ((first + m // heads).to(tl.int64) * heads + m % heads) * topk + slot
    tl.store(to, result, mask=known & (slot < topk))


def select(
    cache: LayerCache,
    rows: RowBatch,
    index_q: torch.Tensor,
    rule: SelectionRule,
    plans: Plans,
    arithmetic: Arithmetic,
) -> Selection:
    """Select blocks per row and index head.

    Args:
        cache: a layer that owns index pages, with this step's index keys already written.
        rows: R rows.
        index_q: [R, Hi, Di], used without a scale.
        rule: how many blocks, and which are forced.
        plans: tiles of the step's rows.
        arithmetic: where the kernels run, and the dtype of their products.

    Returns:
        Logical block ids, int64 [R, Hi, topk], as the reference's.

    Raises:
        ValueError: the layer has no index pages, or the forced blocks do not fit in the top-k.
    """
    if cache.index is None or cache.index_layout is None:
        raise ValueError("select was asked of a layer that owns no index pages")
    if rule.local_blocks < 1 or rule.init_blocks + rule.local_blocks > rule.topk_blocks:
        raise ValueError(
            f"{rule}: local_blocks must be at least 1, and forced blocks must fit in topk_blocks"
        )
    heads, dim = index_q.shape[1:]
    # Few rows a request: one small tile each. Many: taller tiles, fewer reads of a page.
    tiles = plans.tiles(rows, max(1, _MANY_QUERIES // heads))
    chosen = unselected(tiles.rows, (rows.num_rows, heads, rule.topk_blocks), index_q.device)
    if tiles.count == 0:
        return Selection(chosen)
    queries = max(_FEW_QUERIES, power_of_2(tiles.widest * heads))
    wanted = rule.topk_blocks - rule.init_blocks - rule.local_blocks
    kept = power_of_2(max(wanted, 1))
    splits = _splits(rows.num_rows, tiles.count, queries * kept * 8, arithmetic)
    code = page_code(cache.index_layout.geometry)
    candidates = torch.empty(
        (tiles.count, splits, queries, kept), dtype=torch.int64, device=index_q.device
    )
    if wanted:
        _score_kernel[(tiles.count, splits)](
            index_q.contiguous(), rows.positions, rows.request_of_row, rows.page_table,
            tiles.bounds, cache.index, candidates,
            rows.page_table.shape[1], rows.block_size, rule.init_blocks, rule.local_blocks,
            HEADS=heads, QUERIES=queries, KEPT=kept, SPLITS=splits,
            ELEM=code.elem, SCALE=code.scale, DIM=dim, GROUP=code.group, TOKENS=code.tokens,
            PAGE_BYTES=code.page_bytes, SCALE_AT=code.scale_at, ARRANGED=code.arranged,
            PRODUCT=arithmetic.product(index_q.dtype),
        )  # fmt: skip
    step = arithmetic.pick(interpreter=queries, device=min(queries, _MERGE_ROWS))
    merge(candidates, rows, tiles, rule, step, chosen)
    return Selection(chosen)


def merge(
    candidates: torch.Tensor,
    rows: RowBatch,
    tiles: RowTiles,
    rule: SelectionRule,
    step: int,
    out: torch.Tensor,
) -> None:
    """Merge the parts of every tile and append the forced blocks.

    Args:
        candidates: int64 [T, splits, queries, kept] keys, see :func:`sort_key`.
        rows: R rows.
        tiles: T tiles of them.
        rule: how many blocks, and which are forced.
        step: queries a program merges.
        out: int64 [R, Hi, topk], written for the rows of the tiles.
    """
    splits, queries, kept = candidates.shape[1:]
    heads = out.shape[1]
    wanted = rule.topk_blocks - rule.init_blocks - rule.local_blocks
    _merge_kernel[(tiles.count, triton.cdiv(tiles.widest * heads, step))](
        candidates, rows.positions, rows.request_of_row, tiles.bounds, out,
        rows.block_size, wanted, rule.topk_blocks, rule.init_blocks, rule.local_blocks, heads,
        QUERIES=queries, KEPT=kept, SPLITS=splits, WIDTH=power_of_2(splits * kept),
        LIST=power_of_2(rule.topk_blocks), STEP=step,
    )  # fmt: skip


def _splits(rows: int, tiles: int, tile_bytes: int, arithmetic: Arithmetic) -> int:
    """Parts to cut each tile's pages into: enough programs for the device, within the workspace.

    A function of the batch's shape alone: no length, no limit of the configuration.
    """
    wanted = -(-arithmetic.multiprocessors * _WAVES // tiles)
    affordable = (_WORKSPACE + 4096 * rows) // (tiles * tile_bytes)
    return max(1, min(wanted, affordable, 64))
