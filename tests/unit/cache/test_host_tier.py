"""Host memory: what is kept, what is given up, what is pinned, and that bytes come back."""

from __future__ import annotations

import random

import pytest
import torch
from tests.unit.cache.test_prefix import FIRST, SIZE, Holder

from gnomon.engine.cache.host_pages import HostPages
from gnomon.engine.cache.host_tier import HostTier, Mode, Transfer
from gnomon.engine.cache.manager import BlockManager
from gnomon.engine.cache.pools import build_pools
from gnomon.engine.layouts.geometry import LayerPages, geometry
from gnomon.engine.options import CacheFormat


def digest(number: int) -> bytes:
    return number.to_bytes(32, "little")


def run(tier: HostTier) -> tuple[Transfer, ...]:
    transfers = tier.take()
    tier.done(transfers)
    tier.check()
    return transfers


def test_a_block_is_saved_once_and_found_by_content() -> None:
    tier = HostTier(2, "eager")
    tier.save(digest(1), block=7)
    tier.save(digest(1), block=9)
    (transfer,) = run(tier)
    assert (transfer.block, transfer.load) == (7, False)
    assert tier.find(digest(1)) == transfer.slot
    assert tier.find(digest(2)) is None
    assert (tier.num_used, tier.counters.saved) == (1, 1)


def test_the_content_that_was_used_longest_ago_is_given_up() -> None:
    tier = HostTier(2, "eager")
    for number in (1, 2, 1, 3):  # 1 is renewed
        tier.save(digest(number), number)
    assert tier.find(digest(2)) is None
    assert tier.find(digest(1)) is not None
    assert tier.counters.evicted == 1


def test_nothing_is_saved_over_a_slot_that_will_be_loaded() -> None:
    tier = HostTier(1, "lazy")
    tier.save(digest(1), 1)
    run(tier)
    slot = tier.pin(digest(1))
    tier.save(digest(2), 2)
    assert (tier.find(digest(2)), tier.counters.dropped) == (None, 1)
    assert tier.clear() == 0
    tier.load(slot, block=5)
    assert run(tier) == (Transfer(5, slot, load=True),)
    assert tier.num_pinned == 0
    tier.save(digest(2), 2)
    assert tier.find(digest(2)) == slot


def test_two_loads_of_a_slot_pin_it_twice() -> None:
    tier = HostTier(1, "eager")
    tier.save(digest(1), 1)
    run(tier)
    slots = [tier.pin(digest(1)) for _ in range(2)]
    tier.load(slots[0], 2)
    run(tier)
    assert tier.num_pinned == 1
    tier.load(slots[1], 3)
    run(tier)
    assert tier.num_pinned == 0


def test_a_slot_that_is_not_pinned_cannot_be_loaded() -> None:
    with pytest.raises(ValueError, match="slot 0 is loaded without being pinned"):
        HostTier(1, "eager").load(0, 0)


def test_a_tier_without_room_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        HostTier(0, "eager")


def manager(mode: Mode, num_blocks: int = 16, slots: int = 16) -> tuple[BlockManager, HostTier]:
    tier = HostTier(slots, mode)
    return BlockManager(num_blocks, SIZE, "salt", tier=tier), tier


def test_an_eager_tier_saves_blocks_once_they_are_full() -> None:
    cache, tier = manager("eager")
    Holder(cache, [*FIRST, 1]).compute()
    saved = run(tier)
    assert len(saved) == 3
    assert not any(transfer.load for transfer in saved)
    Holder(cache, [*FIRST, 2]).compute()
    assert run(tier) == ()


def test_a_lazy_tier_saves_blocks_when_they_are_evicted() -> None:
    cache, tier = manager("lazy", num_blocks=4)
    first = Holder(cache, FIRST).compute()
    last = first.table.block_ids[2]
    first.release()
    assert run(tier) == ()
    Holder(cache, [1, 2, 3, 4, 5, 6, 7, 8]).compute()
    assert [transfer.block for transfer in run(tier)] == [last]


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_what_was_flushed_is_found_again_and_loaded_into_fresh_blocks(mode: Mode) -> None:
    cache, tier = manager(mode)
    first = Holder(cache, [*FIRST, 1]).compute()
    held = first.table.block_ids[:3]
    first.release()
    assert cache.flush() == 3
    assert len(cache.index) == 0
    run(tier)
    again = Holder(cache, [*FIRST, 2])
    found = cache.match(again.at, 12)
    assert (len(found), len(found.entries), len(found.pages)) == (3, 0, 3)
    assert cache.fits(found, 13)
    cache.adopt(again.table, found)
    loads = run(tier)
    assert [transfer.load for transfer in loads] == [True] * 3
    assert [transfer.block for transfer in loads] == again.table.block_ids
    assert set(held).isdisjoint(again.table.block_ids) or cache.pool.num_used == 3
    third = Holder(cache, [*FIRST, 3])
    assert len(cache.match(third.at, 12).entries) == 3, "a loaded block is found on the device"


def test_a_chain_may_begin_on_the_device_and_end_in_host_memory() -> None:
    cache, tier = manager("lazy", num_blocks=4)
    Holder(cache, FIRST).compute().release()
    Holder(cache, [1, 2, 3, 4, 5, 6, 7, 8]).compute().release()
    run(tier)
    found = cache.match(lambda a, b: [*FIRST, 0][a:b], 12)
    assert (len(found.entries), len(found.pages)) == (2, 1)


def test_other_tokens_before_a_block_are_another_content() -> None:
    cache, tier = manager("eager")
    Holder(cache, FIRST).compute().release()
    cache.flush()
    run(tier)
    assert len(cache.match(lambda a, b: [0, *FIRST[1:], 0][a:b], 12)) == 0
    other = BlockManager(16, SIZE, "another model", tier=tier)
    assert len(other.match(lambda a, b: [*FIRST, 0][a:b], 12)) == 0


def test_host_memory_can_be_forgotten_too() -> None:
    cache, tier = manager("eager")
    Holder(cache, FIRST).compute().release()
    run(tier)
    cache.flush(host=True)
    run(tier)
    assert tier.num_used == 0
    assert len(cache.match(lambda a, b: [*FIRST, 0][a:b], 12)) == 0


@pytest.mark.parametrize("fmt", CacheFormat)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_byte_of_a_block_comes_back(fmt: CacheFormat, device: str) -> None:
    kv, index = geometry(fmt, 8, 32, "kv"), geometry(fmt, 8, 64, "index")
    layers = [LayerPages(2, kv, kv, index), LayerPages(2, kv, kv, None)]
    pools = build_pools(layers, num_blocks=4, device=device)
    fields = [f for layer in pools.layers for f in (layer.k, layer.v, layer.index) if f is not None]
    generator = torch.Generator(device).manual_seed(0)
    for field in fields:
        field.random_(0, 256, generator=generator)
    before = [field.clone() for field in fields]
    host = HostPages(pools, num_slots=2)
    assert host.nbytes == 2 * pools.block_bytes
    host.run([Transfer(1, 0, load=False), Transfer(3, 1, load=False)])
    host.run([Transfer(0, 1, load=True), Transfer(2, 0, load=True)])
    for field, old in zip(fields, before, strict=True):
        assert torch.equal(field[0], old[3])
        assert torch.equal(field[2], old[1])
        assert torch.equal(field[[1, 3]], old[[1, 3]])
    totals = host.totals
    assert totals.saved_bytes == totals.loaded_bytes == 2 * pools.block_bytes


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_many_transfers_run_in_order_whatever_they_share(device: str) -> None:
    page = geometry(CacheFormat.MXFP4, 8, 32, "kv")
    pools = build_pools([LayerPages(1, page, page, None)] * 2, num_blocks=40, device=device)
    host = HostPages(pools, num_slots=40)
    rng, model = random.Random(0), {block: block for block in range(40)}
    for layer in pools.layers:
        for field in (layer.k, layer.v):
            field.copy_(torch.arange(40, device=device)[:, None, None].expand_as(field))
    slots: dict[int, int] = {}
    transfers = []
    for _ in range(400):
        block, slot = rng.randrange(40), rng.randrange(40)
        load = slot in slots and rng.random() < 0.5
        transfers.append(Transfer(block, slot, load))
        if load:
            model[block] = slots[slot]
        else:
            slots[slot] = model[block]
    host.run(transfers)
    for layer in pools.layers:
        for field in (layer.k, layer.v):
            assert field.flatten(1).amax(1).tolist() == [model[block] for block in range(40)]
            assert torch.equal(field.flatten(1).amin(1), field.flatten(1).amax(1))
