"""Choose the blocks each row attends to: the rule is docs/design/selection.md.

Only blocks that are wholly in a row's past compete by score: its own block is forced, and every
block before it is full. So no score needs a mask over tokens, and bytes past the end of a request
are never read.
"""

from __future__ import annotations

import torch

from gnomon.engine.attention.reference.groups import RowGroup, group_rows
from gnomon.engine.attention.rows import RowBatch, Selection, SelectionRule
from gnomon.engine.cache.pools import LayerCache
from gnomon.engine.row_tiles import multiply_groups

#: Most fp32 elements of decoded keys, and of scores, alive at once (32 MiB each).
_TILE_ELEMENTS = 1 << 23
#: Key of a block that cannot be chosen; below the key of every score, -inf included.
_NEVER = torch.iinfo(torch.int64).min
_ID_BITS = 31


def select(
    cache: LayerCache, rows: RowBatch, index_q: torch.Tensor, rule: SelectionRule
) -> Selection:
    """Select blocks per row and index head.

    Args:
        cache: a layer that owns index pages, with this step's index keys already written.
        rows: R rows.
        index_q: [R, Hi, Di]; used in fp32 as it is, without a scale.
        rule: how many blocks, and which are forced.

    Returns:
        Logical block ids, int64 [R, Hi, topk]: history by score descending (lower id on ties),
        then forced blocks ascending, so that the row's own block is the last valid entry; -1
        fills. A pad row has -1 throughout. A block whose score is NaN is chosen only if forced.

    Raises:
        ValueError: the layer has no index pages, or the forced blocks do not fit in the top-k.
    """
    if cache.index is None or cache.index_layout is None:
        raise ValueError("select was asked of a layer that owns no index pages")
    if rule.local_blocks < 1 or rule.init_blocks + rule.local_blocks > rule.topk_blocks:
        raise ValueError(
            f"{rule}: local_blocks must be at least 1, and forced blocks must fit in topk_blocks"
        )
    heads = index_q.shape[1]
    chosen = torch.full((rows.num_rows, heads, rule.topk_blocks), -1, device=index_q.device)
    for group in group_rows(rows):
        own = rows.positions[group.rows] // rows.block_size
        history = _best_history(cache, rows, group, own, index_q.float(), rule)
        chosen[group.rows] = _with_forced(history, own, rule)
    return Selection(chosen)


def _best_history(
    cache: LayerCache,
    rows: RowBatch,
    group: RowGroup,
    own: torch.Tensor,
    index_q: torch.Tensor,
    rule: SelectionRule,
) -> torch.Tensor:
    """The best blocks that are not forced: int64 [n, T, Hi, K], -1 fills at the end.

    Streams over tiles of blocks and keeps the K best keys seen, so memory does not grow with the
    length of a request.
    """
    assert cache.index is not None
    assert cache.index_layout is not None
    n, per_request = group.rows.shape
    heads, dim = index_q.shape[1:]
    wanted = rule.topk_blocks - rule.init_blocks - rule.local_blocks
    best = torch.full((n, per_request, heads, wanted), _NEVER, device=own.device)
    stop = own + 1 - rule.local_blocks  # first block past a row's history
    last = int(stop.max()) if wanted else 0
    queries = index_q[group.rows].flatten(1, 2)  # [n, T * Hi, Di]
    page_elements = max(dim, per_request * heads) * rows.block_size
    tile = max(1, _TILE_ELEMENTS // (n * page_elements))
    for first in range(rule.init_blocks, last, tile):
        blocks = torch.arange(first, min(first + tile, last), device=own.device)
        needed = blocks < stop.amax(1, keepdim=True)  # [n, tile]: some row of the request
        request, column = needed.nonzero(as_tuple=True)
        page = rows.page_table[group.requests[request], blocks[column]]
        keys = cache.index_layout.dequantise(
            cache.index_layout.load(cache.index[:, 0].index_select(0, page))
        )
        scores = torch.zeros((n, len(blocks), per_request * heads), device=own.device)
        scores[request, column] = _block_scores(queries, request, keys)
        by_row = scores.unflatten(-1, (per_request, heads)).permute(0, 2, 3, 1)
        history = blocks < stop.unsqueeze(-1)  # [n, T, tile]
        keyed = torch.where(history.unsqueeze(2), _sort_keys(by_row, blocks), _NEVER)
        best = torch.cat((best, keyed), dim=-1).topk(wanted, dim=-1).values
    return torch.where(best == _NEVER, -1, _block_of_key(best))


def _block_scores(queries: torch.Tensor, request: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Largest dot product per block: queries [n, Q, Di], keys [P, tokens, Di] to fp32 [P, Q].

    Page p belongs to ``request[p]``.
    """
    pages, tokens = keys.shape[:2]
    count = queries.shape[1]
    products = keys.new_empty((pages * count, tokens))
    bounds = range(0, pages * count + 1, count)
    multiply_groups(queries[request].flatten(0, 1), bounds, keys.mT, products)
    return products.view(pages, count, tokens).amax(-1)


def _sort_keys(scores: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """int64 keys that order (score descending, block ascending); NaN scores are never chosen.

    fp32 bits become a signed integer of the same order (-0 counted as +0) in the high half; the
    low half holds the complement of the block id. All keys of a row differ, so any top-k
    algorithm gives one answer.
    """
    bits = (scores + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    keys = (ordered << _ID_BITS) | (((1 << _ID_BITS) - 1) - blocks)
    return torch.where(torch.isnan(scores), _NEVER, keys)


def _block_of_key(keys: torch.Tensor) -> torch.Tensor:
    """The block id in the low half of a key."""
    mask = (1 << _ID_BITS) - 1
    return mask - (keys & mask)


def _with_forced(history: torch.Tensor, own: torch.Tensor, rule: SelectionRule) -> torch.Tensor:
    """Append the forced blocks to history [n, T, Hi, K]; own block of each row: [n, T].

    Returns:
        int64 [n, T, Hi, topk].
    """
    visible = (own + 1)[..., None, None]
    local = visible.clamp(max=rule.local_blocks)
    init = (visible - local).clamp(max=rule.init_blocks)
    taken = (history >= 0).sum(-1, keepdim=True)
    slot = torch.arange(rule.topk_blocks, device=own.device)
    nth = slot - taken  # which forced block goes here
    forced = torch.where(nth < init, nth, visible - local + (nth - init))
    is_forced = (nth >= 0) & (nth < init + local)
    padded = torch.nn.functional.pad(history, (0, rule.topk_blocks - history.shape[-1]), value=-1)
    return torch.where(is_forced, forced, torch.where(nth < 0, padded, -1))
