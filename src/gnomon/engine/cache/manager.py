"""Blocks of live requests: prefix hits, growth, publication and release in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gnomon.engine.cache.blocks import BlockPool
from gnomon.engine.cache.host_tier import HostTier
from gnomon.engine.cache.prefix import PrefixEntry, PrefixIndex, pack

TokensAt = Callable[[int, int], Sequence[int]]
"""Token ids at positions ``start`` to ``stop`` (exclusive) of a request."""


@dataclass
class BlockTable:
    """Blocks one request holds.

    Attributes:
        block_ids: blocks in logical order; position p lives in ``block_ids[p // block_size]``.
        entries: published entries of the leading full blocks; ``entries[i].block`` is
            ``block_ids[i]``, so whoever holds a published block holds all blocks before it.
    """

    block_ids: list[int] = field(default_factory=list)
    entries: list[PrefixEntry] = field(default_factory=list)


@dataclass(frozen=True)
class Match:
    """Leading blocks of a request whose content is known.

    Attributes:
        entries: blocks on the device.
        pages: digest and packed tokens of the blocks behind them that host memory has.
    """

    entries: tuple[PrefixEntry, ...] = ()
    pages: tuple[tuple[bytes, bytes], ...] = ()

    def __len__(self) -> int:
        return len(self.entries) + len(self.pages)


class BlockManager:
    """Gives blocks to requests and takes them back.

    Only a full block whose every token has been computed is ever shared, and a request writes only
    behind its computed tokens: a block that is still written has exactly one holder.

    Eviction removes children before their parents, because a holder of a block holds all blocks
    before it and a release returns the last block first. So an entry's parent is always published.

    Args:
        num_blocks: blocks of the pool.
        block_size: tokens a block.
        salt: see :class:`~gnomon.engine.cache.prefix.PrefixIndex`.
        enable_prefix_caching: False publishes nothing, so nothing is ever found.
        tier: host memory for published blocks. Its transfers must run before the next forward, and
            those that :meth:`publish` queues before the next :meth:`extend` or :meth:`adopt`.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        salt: str,
        enable_prefix_caching: bool = True,
        tier: HostTier | None = None,
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex(salt, digests=tier is not None)
        self.tier = tier
        self.enable_prefix_caching = enable_prefix_caching

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-num_tokens // self.block_size)

    def match(self, tokens_at: TokensAt, num_tokens: int) -> Match:
        """The longest known chain within the first ``num_tokens`` tokens.

        Pass one token less than the request has: the last one must be computed anyway, since its
        logits are what the next token is sampled from.
        """
        if not self.enable_prefix_caching:
            return Match()
        entries: list[PrefixEntry] = []
        pages: list[tuple[bytes, bytes]] = []
        parent: PrefixEntry | None = None
        for start in range(0, num_tokens - self.block_size + 1, self.block_size):
            tokens = pack(tokens_at(start, start + self.block_size))
            if not pages:
                found = self.index.find(parent, tokens)
                if found is not None:
                    entries.append(found)
                    parent = found
                    continue
            if self.tier is None:
                break
            before = pages[-1][0] if pages else None if parent is None else parent.digest
            digest = self.index.digest(before, tokens)
            if self.tier.find(digest) is None:
                break
            pages.append((digest, tokens))
        return Match(tuple(entries), tuple(pages))

    def fits(self, match: Match, num_tokens: int) -> bool:
        """Whether a new request of ``num_tokens`` with these hits has room.

        A cached block that a hit would revive is no room for anything else, and a page from host
        memory needs a block like any other.
        """
        revived = sum(self.pool.holders(entry.block) == 0 for entry in match.entries)
        needed = self.blocks_for(num_tokens) - len(match.entries)
        return needed + revived <= self.pool.num_available

    def adopt(self, table: BlockTable, match: Match) -> None:
        """Start an empty table with the blocks of a match, and queue the loads it needs."""
        for entry in match.entries:
            self.pool.share(entry.block)
            table.block_ids.append(entry.block)
            table.entries.append(entry)
        if not match.pages or self.tier is None:
            return
        # All are pinned before a block is taken: taking one may save what it evicts.
        slots = [self.tier.pin(digest) for digest, _ in match.pages]
        for slot, (_, tokens) in zip(slots, match.pages, strict=True):
            block = self._take()
            self.tier.load(slot, block)
            table.block_ids.append(block)
            if len(table.entries) == len(table.block_ids) - 1:
                parent = table.entries[-1] if table.entries else None
                loaded = self.index.publish(parent, tokens, block)
                if loaded is not None:  # None: other content has the key; it stays private
                    table.entries.append(loaded)

    def extend(self, table: BlockTable, num_tokens: int) -> bool:
        """Grow a table to hold ``num_tokens``; False, and nothing changed, if blocks are short."""
        missing = self.blocks_for(num_tokens) - len(table.block_ids)
        if missing > self.pool.num_available:
            return False
        for _ in range(missing):
            table.block_ids.append(self._take())
        return True

    def publish(self, table: BlockTable, tokens_at: TokensAt, num_computed: int) -> None:
        """Make the table's full blocks among the first ``num_computed`` tokens findable.

        Where another request published the same content first, the table takes over that block and
        gives its own copy back: equal prompts that ran side by side end up sharing.
        """
        if not self.enable_prefix_caching:
            return
        size = self.block_size
        for i in range(len(table.entries), num_computed // size):
            parent = table.entries[-1] if table.entries else None
            mine = table.block_ids[i]
            entry = self.index.publish(parent, pack(tokens_at(i * size, (i + 1) * size)), mine)
            if entry is None:  # the key is taken by other content: stay private from here on
                return
            if entry.block != mine:
                self.pool.share(entry.block)
                self.pool.drop(mine, findable=False)
                table.block_ids[i] = entry.block
            elif self.tier is not None and self.tier.mode == "eager":
                self.tier.save(entry.digest, mine)
            table.entries.append(entry)

    def release(self, table: BlockTable) -> None:
        """Give all blocks back, last first; published ones stay findable until evicted."""
        for block in reversed(table.block_ids):
            self.pool.drop(block, findable=self.index.holds(block))
        table.block_ids.clear()
        table.entries.clear()

    def flush(self, *, host: bool = False) -> int:
        """Forget every block that no request holds; with a tier, host memory keeps its content.

        Args:
            host: forget what host memory holds too.

        Returns:
            Blocks of the device that were freed.
        """
        flushed = self.pool.flush()
        for block in flushed:
            self._forget(block)
        if host and self.tier is not None:
            self.tier.clear()
        return len(flushed)

    def _take(self) -> int:
        block, evicted = self.pool.take()
        if evicted:
            self._forget(block)
        return block

    def _forget(self, block: int) -> None:
        entry = self.index.forget(block)
        if self.tier is not None:
            self.tier.save(entry.digest, block)
