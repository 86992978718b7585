"""Which blocks of the paged cache are held, findable or free. Pure bookkeeping: no bytes here."""

from __future__ import annotations

from collections import OrderedDict, deque


class BlockPool:
    """Reference counts over ``num_blocks`` blocks, and the order in which blocks are given out.

    A block is in exactly one of three states: *used* (one or more holders), *cached* (no holder,
    its content is still findable, evicted least recently used first) or *free* (no holder, content
    forgotten). Free blocks are handed out before any cached one is evicted.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a block pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._free = deque(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def num_available(self) -> int:
        """Blocks that :meth:`take` can still hand out."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks with at least one holder."""
        return self.num_blocks - self.num_available

    @property
    def num_cached(self) -> int:
        """Blocks without a holder whose content is still findable."""
        return len(self._cached)

    def holders(self, block: int) -> int:
        """How many requests hold the block."""
        return self._holders[block]

    def take(self) -> tuple[int, bool]:
        """Hand out a block to one holder.

        Returns:
            The block and whether its cached content was evicted to make room.

        Raises:
            IndexError: nothing is available; callers ask :attr:`num_available` first.
        """
        if self._free:
            block, evicted = self._free.popleft(), False
        elif self._cached:
            (block, _), evicted = self._cached.popitem(last=False), True
        else:
            raise IndexError(f"all {self.num_blocks} blocks are held")
        self._holders[block] = 1
        return block, evicted

    def share(self, block: int) -> None:
        """Add a holder to a used or cached block."""
        if self._holders[block] == 0:
            del self._cached[block]  # a KeyError here means sharing a block without content
        self._holders[block] += 1

    def drop(self, block: int, *, findable: bool) -> None:
        """Remove a holder; the last one leaves the block cached if findable, else free."""
        if self._holders[block] < 1:
            raise ValueError(f"block {block} is dropped more often than it was taken")
        self._holders[block] -= 1
        if self._holders[block]:
            return
        if findable:
            self._cached[block] = None
        else:
            self._free.append(block)

    def flush(self) -> list[int]:
        """Free every cached block; returns them, least recently used first."""
        flushed = list(self._cached)
        self._cached.clear()
        self._free.extend(flushed)
        return flushed

    def check(self) -> None:
        """Verify that every block is in exactly one state (tests and debugging)."""
        free, cached = set(self._free), set(self._cached)
        used = {block for block, count in enumerate(self._holders) if count}
        assert len(free) == len(self._free), "a block is twice in the free list"
        states = len(free) + len(cached) + len(used)
        assert states == self.num_blocks, "a block has two states, or none"
        assert free | cached | used == set(range(self.num_blocks)), "a block is lost"
        assert min(self._holders) >= 0, "a block has a negative number of holders"
