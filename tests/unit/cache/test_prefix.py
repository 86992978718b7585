"""A prefix is found only if model, layout, every earlier token and every own token agree."""

from __future__ import annotations

import pytest

from gnomon.engine.cache.manager import BlockManager, BlockTable
from gnomon.engine.cache.prefix import PrefixEntry, PrefixIndex, pack

SIZE = 4


class Holder:
    """A request as the cache sees it: tokens and a table."""

    def __init__(self, manager: BlockManager, tokens: list[int]) -> None:
        self.manager, self.tokens, self.table = manager, tokens, BlockTable()

    def at(self, start: int, stop: int) -> list[int]:
        return self.tokens[start:stop]

    def found(self) -> int:
        return len(self.manager.match(self.at, len(self.tokens) - 1)) * SIZE

    def compute(self) -> Holder:
        """Adopt what is cached, take blocks for the rest, publish."""
        self.manager.adopt(self.table, self.manager.match(self.at, len(self.tokens) - 1))
        assert self.manager.extend(self.table, len(self.tokens))
        self.manager.publish(self.table, self.at, len(self.tokens))
        return self

    def release(self) -> Holder:
        self.manager.release(self.table)
        return self


def manager(num_blocks: int = 16, *, enabled: bool = True) -> BlockManager:
    return BlockManager(num_blocks, SIZE, "salt", enabled)


FIRST = list(range(100, 112))  # three full blocks


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        (FIRST, 8),  # the last token must be computed, and with it its block
        ([*FIRST, 1], 12),
        ([*FIRST, 1, 2, 3, 4], 12),
        (FIRST[:11], 8),
        (FIRST[:9], 8),
        (FIRST[:8], 4),
        (FIRST[:7], 4),
        (FIRST[:4], 0),
        (FIRST[:3], 0),
        (FIRST[:1], 0),
        ([*FIRST[:6], 0, 0, 0, 0], 4),  # differs inside the second block
        ([0, *FIRST[1:]], 0),  # differs in the first token: equal later blocks do not count
        (FIRST[4:], 0),  # the same tokens at other positions
    ],
)
def test_the_longest_chain_of_full_blocks_is_found(prompt: list[int], found: int) -> None:
    cache = manager()
    Holder(cache, FIRST).compute().release()
    assert Holder(cache, prompt).found() == found


def test_blocks_that_are_still_held_are_found_too() -> None:
    cache = manager()
    Holder(cache, FIRST).compute()
    assert Holder(cache, [*FIRST, 1]).found() == 12


def test_a_block_that_is_not_full_is_never_shared() -> None:
    cache = manager()
    first = Holder(cache, FIRST[:11]).compute()
    second = Holder(cache, [*FIRST[:11], 7, 7]).compute()
    assert second.table.block_ids[:2] == first.table.block_ids[:2]
    assert second.table.block_ids[2] != first.table.block_ids[2]


def test_nothing_is_found_with_prefix_caching_off() -> None:
    cache = manager(enabled=False)
    Holder(cache, FIRST).compute().release()
    assert Holder(cache, FIRST).found() == 0
    assert cache.pool.num_cached == 0


def test_equal_prompts_that_ran_side_by_side_end_up_sharing() -> None:
    cache = manager()
    holders = [Holder(cache, [*FIRST, extra]) for extra in (1, 2)]
    for holder in holders:
        assert cache.extend(holder.table, 13)
    assert cache.pool.num_used == 8
    for holder in holders:
        cache.publish(holder.table, holder.at, 13)
    assert holders[0].table.block_ids[:3] == holders[1].table.block_ids[:3]
    assert cache.pool.num_used == 5
    for holder in holders:
        holder.release()
    assert (cache.pool.num_used, cache.pool.num_cached) == (0, 3)
    cache.pool.check()


def test_the_end_of_a_chain_is_evicted_before_its_beginning() -> None:
    cache = manager(num_blocks=4)
    Holder(cache, FIRST).compute().release()  # three cached, one free
    Holder(cache, [1, 2, 3, 4, 5, 6, 7, 8]).compute().release()
    assert Holder(cache, [*FIRST, 0]).found() == 8


def test_an_evicted_block_is_not_found() -> None:
    cache = manager(num_blocks=3)
    Holder(cache, FIRST).compute().release()
    Holder(cache, list(range(12))).compute().release()
    assert Holder(cache, [*FIRST, 0]).found() == 0
    assert len(cache.index) == 3


def test_a_hit_revives_cached_blocks_and_they_no_longer_count_as_room() -> None:
    cache = manager(num_blocks=4)
    Holder(cache, FIRST).compute().release()
    entries = cache.match(lambda a, b: [*FIRST, 0][a:b], 12)
    assert len(entries) == 3
    assert cache.fits(entries, 16)
    assert not cache.fits(entries, 17)


def test_a_failed_growth_changes_nothing() -> None:
    cache = manager(num_blocks=2)
    holder = Holder(cache, [1, 2])
    assert cache.extend(holder.table, 4)
    assert not cache.extend(holder.table, 12)
    assert len(holder.table.block_ids) == 1
    assert cache.pool.num_used == 1


def test_other_salts_give_other_keys() -> None:
    tokens = pack([1, 2, 3, 4])
    keys = {
        entry.key
        for salt in ("model-a/mxfp4", "model-a/nvfp4", "model-b/mxfp4")
        if (entry := PrefixIndex(salt).publish(None, tokens, 0)) is not None
    }
    assert len(keys) == 3


class ConstantHash(PrefixIndex):
    """Every block has the same key."""

    def _key(self, parent: PrefixEntry | None, tokens: bytes) -> int:
        return 1


def test_a_colliding_hash_is_a_miss_and_never_other_content() -> None:
    cache = manager()
    cache.index = ConstantHash("salt")
    Holder(cache, FIRST).compute().release()
    assert len(cache.index) == 1  # the second block's key was taken
    assert Holder(cache, [*FIRST, 1]).found() == 4
    assert Holder(cache, [9, 9, 9, 9, 9]).found() == 0
