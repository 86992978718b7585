"""Which blocks' bytes are kept in host memory, by content. Pure bookkeeping: no bytes here."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

Mode = Literal["eager", "lazy"]
"""Eager saves a block once it is full (and again on eviction if it has gone); lazy on eviction."""

STAGED_BLOCKS = 32
"""Blocks that a GPU gathers into one piece of its memory before they cross the bus."""


@dataclass(frozen=True)
class Transfer:
    """One block's pages between the device and a slot of host memory.

    Attributes:
        block: block of the device's pools.
        slot: slot of the host's memory.
        load: from host to device; else from device to host.
    """

    block: int
    slot: int
    load: bool


@dataclass
class HostCounters:
    """Totals since start, in blocks."""

    saved: int = 0
    loaded: int = 0
    evicted: int = 0
    dropped: int = 0  # not saved, because every slot was pinned


class HostTier:
    """Slots of host memory and the content each holds.

    Content is known by a SHA-256 digest over the model's and layouts' identity and every token up
    to the end of the block, so a page is found whichever request wrote it and whatever the device
    still holds, and a store shared by several servers could use the same names.

    Transfers are queued in the order in which they must run. A slot that will be loaded is pinned
    from the moment it is found until its load has run: nothing may be saved over it.

    Args:
        num_slots: blocks that fit the budget.
        mode: when blocks are saved.
    """

    def __init__(self, num_slots: int, mode: Mode) -> None:
        if num_slots < 1:
            raise ValueError(f"a host tier needs room for at least one block, not {num_slots}")
        self.num_slots = num_slots
        self.mode = mode
        self.counters = HostCounters()
        self._free = list(range(num_slots - 1, -1, -1))
        self._slots: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._pins: dict[int, int] = {}
        self._queue: list[Transfer] = []

    @property
    def num_used(self) -> int:
        """Slots with content."""
        return len(self._slots)

    @property
    def num_pinned(self) -> int:
        """Slots whose load has not run yet."""
        return len(self._pins)

    def find(self, digest: bytes) -> int | None:
        """The slot with this content, or None."""
        return self._slots.get(digest)

    def save(self, digest: bytes, block: int) -> None:
        """Queue a block to be saved, unless its content is here; either way it is now recent."""
        if digest in self._slots:
            self._slots.move_to_end(digest)
            return
        slot = self._free.pop() if self._free else self._evict()
        if slot is None:
            self.counters.dropped += 1
            return
        self._slots[digest] = slot
        self._queue.append(Transfer(block, slot, load=False))
        self.counters.saved += 1

    def pin(self, digest: bytes) -> int:
        """Hold a slot for a load.

        Raises:
            KeyError: the content is not here.
        """
        slot = self._slots[digest]
        self._slots.move_to_end(digest)
        self._pins[slot] = self._pins.get(slot, 0) + 1
        return slot

    def load(self, slot: int, block: int) -> None:
        """Queue the load of a pinned slot."""
        if slot not in self._pins:
            raise ValueError(f"slot {slot} is loaded without being pinned")
        self._queue.append(Transfer(block, slot, load=True))
        self.counters.loaded += 1

    def take(self) -> tuple[Transfer, ...]:
        """The queued transfers, in order; whoever takes them calls :meth:`done` afterwards."""
        taken, self._queue = tuple(self._queue), []
        return taken

    def done(self, transfers: tuple[Transfer, ...]) -> None:
        """Release the pins of transfers that have run, or never will."""
        for transfer in transfers:
            if not transfer.load:
                continue
            self._pins[transfer.slot] -= 1
            if not self._pins[transfer.slot]:
                del self._pins[transfer.slot]

    def clear(self) -> int:
        """Forget everything that is not pinned; returns how many slots that were."""
        gone = [digest for digest, slot in self._slots.items() if slot not in self._pins]
        for digest in gone:
            self._free.append(self._slots.pop(digest))
        return len(gone)

    def check(self) -> None:
        """Verify that every slot is in exactly one state (tests and debugging)."""
        used = list(self._slots.values())
        assert len(set(used)) == len(used), "a slot has two contents"
        assert sorted([*self._free, *used]) == list(range(self.num_slots)), "a slot is lost"
        assert set(self._pins) <= set(used), "a pinned slot has no content"
        assert all(count > 0 for count in self._pins.values()), "a pin is counted wrongly"

    def _evict(self) -> int | None:
        for digest, slot in self._slots.items():
            if slot not in self._pins:
                del self._slots[digest]
                self.counters.evicted += 1
                return slot
        return None
