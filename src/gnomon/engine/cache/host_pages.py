"""Host memory that holds pages as opaque bytes: every field of every layer of a block together.

Nothing here knows a format. A block's bytes in a slot are its K pages, V pages and index page,
scales and all, layer by layer, as the pools hold them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gnomon.engine.cache.host_tier import Transfer
from gnomon.engine.cache.pools import PagePools


@dataclass
class TransferTotals:
    """Bytes and seconds since start, each way."""

    saved_bytes: int = 0
    loaded_bytes: int = 0
    save_s: float = 0.0
    load_s: float = 0.0


class HostPages:
    """Slots of host memory for the blocks of one rank's pools.

    Copies are made at once, in the order given; pinned memory is used where there is a GPU.

    Args:
        pools: where blocks are.
        num_slots: blocks that host memory holds.
    """

    def __init__(self, pools: PagePools, num_slots: int) -> None:
        on_gpu = pools.layers[0].k.device.type == "cuda"
        self.num_slots = num_slots
        self.totals = TransferTotals()
        self.slot_bytes = pools.block_bytes
        self._memory = torch.empty(
            (num_slots, self.slot_bytes), dtype=torch.uint8, pin_memory=on_gpu
        )
        self._fields = tuple(_fields(pools))

    @property
    def nbytes(self) -> int:
        """Bytes of host memory taken."""
        return self._memory.nbytes

    def run(self, transfers: Sequence[Transfer]) -> None:
        """Copy blocks to slots and slots to blocks, in order."""
        for transfer in transfers:
            start = time.perf_counter()
            slot = self._memory[transfer.slot]
            for field, first, size in self._fields:
                part, pages = slot[first : first + size], field[transfer.block].view(-1)
                if transfer.load:
                    pages.copy_(part)
                else:
                    part.copy_(pages)
            took = time.perf_counter() - start
            if transfer.load:
                self.totals.loaded_bytes += self.slot_bytes
                self.totals.load_s += took
            else:
                self.totals.saved_bytes += self.slot_bytes
                self.totals.save_s += took


def _fields(pools: PagePools) -> Iterator[tuple[torch.Tensor, int, int]]:
    """Every field of every layer with its first byte in a slot and its bytes a block."""
    first = 0
    for layer in pools.layers:
        for field in (layer.k, layer.v, layer.index):
            if field is not None:
                size = field[0].nbytes if field.shape[0] else 0
                yield field, first, size
                first += size
