"""A block is used, cached or free, and is given out in the right order."""

from __future__ import annotations

import pytest

from gnomon.engine.cache.blocks import BlockPool


def test_a_block_goes_back_when_its_last_holder_leaves() -> None:
    pool = BlockPool(2)
    block, evicted = pool.take()
    pool.share(block)
    assert (evicted, pool.holders(block), pool.num_used) == (False, 2, 1)
    pool.drop(block, findable=False)
    assert pool.num_used == 1
    pool.drop(block, findable=False)
    assert (pool.num_used, pool.num_cached, pool.num_available) == (0, 0, 2)
    pool.check()


def test_free_blocks_are_given_out_before_cached_ones_are_evicted() -> None:
    pool = BlockPool(3)
    a, b = pool.take()[0], pool.take()[0]
    pool.drop(a, findable=True)
    c, evicted = pool.take()
    assert not evicted
    assert c not in (a, b)
    assert pool.take() == (a, True)


def test_the_cached_block_that_was_used_longest_ago_is_evicted_first() -> None:
    pool = BlockPool(3)
    a, b, c = (pool.take()[0] for _ in range(3))
    for block in (b, a, c):
        pool.drop(block, findable=True)
    pool.share(b)  # a hit renews it
    pool.drop(b, findable=True)
    assert [pool.take()[0] for _ in range(3)] == [a, c, b]


def test_nothing_is_given_out_when_all_blocks_are_held() -> None:
    pool = BlockPool(1)
    pool.take()
    with pytest.raises(IndexError, match="all 1 blocks are held"):
        pool.take()


def test_dropping_a_block_nobody_holds_is_an_error() -> None:
    with pytest.raises(ValueError, match="block 0 is dropped more often than it was taken"):
        BlockPool(1).drop(0, findable=True)


def test_a_free_block_cannot_be_shared() -> None:
    with pytest.raises(KeyError):
        BlockPool(1).share(0)
