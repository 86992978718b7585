"""What a draft model takes beside its target: its own weights and its own, windowed pages."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon.engine.layouts.geometry import LayerPages, geometry
from gnomon.engine.options import CacheFormat


@dataclass(frozen=True)
class DraftMemory:
    """A draft with pages of its own.

    Attributes:
        name: for people.
        layers: attention layers.
        kv_heads: KV heads of a layer, divided among ranks like a target's.
        head_dim: of K and V.
        window: tokens that its attention looks back.
        weight_bytes: of all ranks together.
        source: where the figures are from.
    """

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    window: int
    weight_bytes: int
    source: str


DRAFTS: dict[str, DraftMemory] = {
    "dspark": DraftMemory(
        name="the DSpark draft of MiniMax-M3.1",
        layers=5,
        kv_heads=4,
        head_dim=128,
        window=4096,
        weight_bytes=2_300_000_000,
        source="folder dspark/ of MiniMaxAI/MiniMax-M3.1-Flash: 5 layers, window 4096, 2.3 GB",
    ),
}
"""By the name given to ``gnomon plan --draft``."""

_BLOCK = 128


def draft_pages(draft: DraftMemory, ranks: int) -> tuple[LayerPages, ...]:
    """bf16 pages of every draft layer on one rank."""
    kv = geometry(CacheFormat.BF16, _BLOCK, draft.head_dim, "kv")
    heads = max(1, draft.kv_heads // ranks)
    return tuple(LayerPages(heads, kv, kv, None) for _ in range(draft.layers))


def draft_bytes(draft: DraftMemory, requests: int, ranks: int) -> int:
    """Weights of a rank, and the pages that the windows of all requests touch at once.

    A window of w tokens touches ``w / 128 + 1`` pages, so nothing grows with the context.
    """
    pages = -(-draft.window // _BLOCK) + 1
    block = sum(layer.block_bytes for layer in draft_pages(draft, ranks))
    return -(-draft.weight_bytes // ranks) + requests * pages * block
