"""Host memory that holds pages as opaque bytes: every field of every layer of a block together.

Nothing here knows a format. A block's bytes in a slot are its K pages, V pages and index page,
scales and all, layer by layer, as the pools hold them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gnomon.engine.cache.host_tier import STAGED_BLOCKS, Transfer
from gnomon.engine.cache.pools import PagePools

_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
_WORD = 8


@dataclass
class TransferTotals:
    """Bytes and seconds since start, each way."""

    saved_bytes: int = 0
    loaded_bytes: int = 0
    save_s: float = 0.0
    load_s: float = 0.0


@dataclass(frozen=True)
class _Part:
    """One arena's share of a slot.

    Attributes:
        arena: [fields, blocks, words], in the widest words that divide its bytes.
        first: first byte in a slot.
        stop: byte behind the last.
    """

    arena: torch.Tensor
    first: int
    stop: int

    def of(self, slots: torch.Tensor) -> torch.Tensor:
        """View of slots, uint8 [n, slot bytes], as [n, fields, words]."""
        words = slots[:, self.first : self.stop].view(self.arena.dtype)
        return words.view(slots.shape[0], self.arena.shape[0], self.arena.shape[2])


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
        device = pools.arenas[0].device
        self.num_slots = num_slots
        self.totals = TransferTotals()
        self.slot_bytes = pools.block_bytes
        # Slots begin at multiples of the widest word.
        stride = -(-self.slot_bytes // _WORD) * _WORD
        self._memory = torch.empty(
            (num_slots, stride), dtype=torch.uint8, pin_memory=device.type == "cuda"
        )
        self._parts = tuple(_parts(pools))
        self._staging: torch.Tensor | None = None
        if device.type == "cuda":
            shape = (STAGED_BLOCKS, stride)
            self._staging = torch.empty(shape, dtype=torch.uint8, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of host memory taken."""
        return self._memory.nbytes

    def run(self, transfers: Sequence[Transfer]) -> None:
        """Copy blocks to slots and slots to blocks, in order."""
        for load, group in itertools.groupby(transfers, key=lambda transfer: transfer.load):
            start, one_way = time.perf_counter(), list(group)
            if self._staging is None:
                self._copy(one_way)
            else:
                for batch in _batches(one_way):
                    self._copy_staged(batch, self._staging[: len(batch)])
                torch.cuda.current_stream(self._staging.device).synchronize()
            took, moved = time.perf_counter() - start, len(one_way) * self.slot_bytes
            if load:
                self.totals.loaded_bytes += moved
                self.totals.load_s += took
            else:
                self.totals.saved_bytes += moved
                self.totals.save_s += took

    def _copy(self, transfers: Sequence[Transfer]) -> None:
        for transfer in transfers:
            slot = self._memory[transfer.slot : transfer.slot + 1]
            for part in self._parts:
                kept, pages = part.of(slot)[0], part.arena[:, transfer.block]
                if transfer.load:
                    pages.copy_(kept)
                else:
                    kept.copy_(pages)

    def _copy_staged(self, batch: Sequence[Transfer], staged: torch.Tensor) -> None:
        """Enqueue a batch of one direction; the stream keeps its order with the next."""
        ids = torch.tensor([transfer.block for transfer in batch], pin_memory=True)
        blocks = ids.to(staged.device, non_blocking=True)
        if batch[0].load:
            for place, transfer in zip(staged, batch, strict=True):
                place.copy_(self._memory[transfer.slot], non_blocking=True)
            for part in self._parts:
                part.arena.index_copy_(1, blocks, part.of(staged).transpose(0, 1))
        else:
            for part in self._parts:
                part.of(staged).copy_(part.arena.index_select(1, blocks).transpose(0, 1))
            for place, transfer in zip(staged, batch, strict=True):
                self._memory[transfer.slot].copy_(place, non_blocking=True)


def _batches(transfers: Sequence[Transfer]) -> Iterator[list[Transfer]]:
    """At most STAGED_BLOCKS transfers, and no block twice."""
    batch: list[Transfer] = []
    seen: set[int] = set()
    for transfer in transfers:
        if len(batch) == STAGED_BLOCKS or transfer.block in seen:
            yield batch
            batch, seen = [], set()
        batch.append(transfer)
        seen.add(transfer.block)
    if batch:
        yield batch


def _parts(pools: PagePools) -> Iterator[_Part]:
    """Every arena with its place in a slot."""
    first = 0
    for arena in pools.arenas:
        stop = first + arena.shape[0] * arena.shape[2]
        word = next(w for w in _WORDS if first % w.itemsize == 0 == arena.shape[2] % w.itemsize)
        yield _Part(arena.view(word), first, stop)
        first = stop
