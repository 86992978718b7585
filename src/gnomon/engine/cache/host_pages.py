"""Host memory that holds pages as opaque bytes: every field of every layer of a block together.

Nothing here knows a format. A block's bytes in a slot are its K pages, V pages and index page,
scales and all, layer by layer, as the pools hold them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gnomon.engine.cache.host_tier import STAGED_BLOCKS, Transfer
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

    Copies are done, in the order given, when :meth:`run` returns. On a GPU a block's pages, some
    hundreds of small ones, are gathered into one piece (or scattered from it) by the device, so
    that they cross the bus to or from pinned memory in one copy.

    Args:
        pools: where blocks are.
        num_slots: blocks that host memory holds.
    """

    def __init__(self, pools: PagePools, num_slots: int) -> None:
        device = pools.layers[0].k.device
        self.num_slots = num_slots
        self.totals = TransferTotals()
        self.slot_bytes = pools.block_bytes
        self._memory = torch.empty(
            (num_slots, self.slot_bytes), dtype=torch.uint8, pin_memory=device.type == "cuda"
        )
        self._fields = tuple(_fields(pools))
        self._staging: torch.Tensor | None = None
        if device.type == "cuda":
            shape = (STAGED_BLOCKS, self.slot_bytes)
            self._staging = torch.empty(shape, dtype=torch.uint8, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of host memory taken."""
        return self._memory.nbytes

    def run(self, transfers: Sequence[Transfer]) -> None:
        """Copy blocks to slots and slots to blocks, in order."""
        for batch in _batches(transfers):
            start = time.perf_counter()
            if self._staging is None:
                self._copy(batch)
            else:
                self._copy_staged(batch, self._staging[: len(batch)])
            took, moved = time.perf_counter() - start, len(batch) * self.slot_bytes
            if batch[0].load:
                self.totals.loaded_bytes += moved
                self.totals.load_s += took
            else:
                self.totals.saved_bytes += moved
                self.totals.save_s += took

    def _copy(self, batch: Sequence[Transfer]) -> None:
        for transfer in batch:
            slot = self._memory[transfer.slot]
            for field, first, size in self._fields:
                part, pages = slot[first : first + size], field[transfer.block]
                if transfer.load:
                    pages.copy_(part)
                else:
                    part.copy_(pages)

    def _copy_staged(self, batch: Sequence[Transfer], staged: torch.Tensor) -> None:
        blocks = torch.tensor([transfer.block for transfer in batch], device=staged.device)
        if batch[0].load:
            for place, transfer in zip(staged, batch, strict=True):
                place.copy_(self._memory[transfer.slot], non_blocking=True)
            for field, first, size in self._fields:
                field.index_copy_(0, blocks, staged[:, first : first + size])
        else:
            for field, first, size in self._fields:
                staged[:, first : first + size] = field.index_select(0, blocks)
            for place, transfer in zip(staged, batch, strict=True):
                self._memory[transfer.slot].copy_(place, non_blocking=True)
        torch.cuda.current_stream(staged.device).synchronize()


def _batches(transfers: Sequence[Transfer]) -> Iterator[list[Transfer]]:
    """Neighbours of one direction, at most STAGED_BLOCKS and no block twice."""
    batch: list[Transfer] = []
    for transfer in transfers:
        seen = {other.block for other in batch}
        full = len(batch) == STAGED_BLOCKS or transfer.block in seen
        if batch and (full or transfer.load != batch[0].load):
            yield batch
            batch = []
        batch.append(transfer)
    if batch:
        yield batch


def _fields(pools: PagePools) -> Iterator[tuple[torch.Tensor, int, int]]:
    """Every field of every layer as [blocks, bytes], its first byte in a slot, its bytes."""
    first = 0
    for layer in pools.layers:
        for field in (layer.k, layer.v, layer.index):
            if field is not None:
                flat = field.view(field.shape[0], -1)
                yield flat, first, flat.shape[1]
                first += flat.shape[1]
