"""What must hold of a step before anything is written, whichever backend does it."""

from __future__ import annotations

from gnomon.engine.attention.rows import RowBatch
from gnomon.engine.cache.pools import LayerCache


def check_write(cache: LayerCache, rows: RowBatch, *, has_index: bool) -> None:
    """Refuse rows or keys that cannot belong to a layer's pages.

    Raises:
        ValueError: index keys without an index page, or the reverse; or the rows count blocks of
            another size than the pages.
    """
    if rows.block_size != cache.pages.k.tokens:
        raise ValueError(
            f"rows of blocks of {rows.block_size} tokens cannot be written to pages of "
            f"{cache.pages.k.tokens} tokens"
        )
    if has_index != (cache.index is not None):
        raise ValueError(
            f"index keys given: {has_index}, but the layer owns index pages: "
            f"{cache.index is not None}"
        )
