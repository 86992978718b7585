"""The debug mode refuses what a kernel would not notice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gnomon.engine.attention.checked import CheckedBackend
from gnomon.engine.attention.reference.backend import ReferenceBackend
from gnomon.engine.attention.rows import RowBatch, Selection, SelectionRule
from gnomon.engine.errors import AttentionContractError
from gnomon.engine.options import CacheFormat

from .paged import Chunk, World, assert_same, observe

RULE = SelectionRule(topk_blocks=4, init_blocks=1)
CHECKED = CheckedBackend(ReferenceBackend())


def setup() -> tuple[World, RowBatch]:
    world = World(CacheFormat.MXFP4, [100, 90, 5], whole=True)
    world.write_all(CHECKED)
    return world, world.batch([Chunk(97, 3), Chunk(89, 1), Chunk(0, 5)], pads=1)


def changed(x: torch.Tensor, at, value: int) -> torch.Tensor:
    x = x.clone()
    x[at] = value
    return x


def test_a_sound_step_is_the_backends():
    world, rows = setup()
    seen = observe(CHECKED, world, rows, RULE)
    assert_same(seen, observe(ReferenceBackend(), world, rows, RULE))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda r: {"request_of_row": changed(r.request_of_row, 2, 3)}, "row 2 belongs to request"),
        (lambda r: {"positions": changed(r.positions, 5, 90)}, "row 5 is at position 90, past"),
        (lambda r: {"last_seen": changed(r.positions, 1, 96)}, "row 1 at position 97 sees up to"),
        (lambda r: {"last_seen": changed(r.positions, 1, 100)}, "row 1 at position 97 sees up to"),
        (lambda r: {"lengths": changed(r.lengths, 0, 10_000)}, "request 0 has 10000 tokens, but"),
        (lambda r: {"page_table": changed(r.page_table, (1, 2), 64)}, "page 2 of request 1 is"),
        (lambda r: {"page_table": changed(r.page_table, (0, 0), -1)}, "page 0 of request 0 is"),
    ],
)
def test_rows_outside_their_bounds_are_refused(change, sentence):
    world, rows = setup()
    broken = replace(rows, **change(rows))
    with pytest.raises(AttentionContractError, match=sentence):
        CHECKED.dense(world.cache, broken, world.queries(rows)[1])


@pytest.mark.parametrize(
    ("row", "slot", "sentence"),
    [
        (1, 64 * 16, "row 1 writes to slot 1024, but the pool has 64 blocks"),
        (2, 3, "row 2 at position 98 writes to slot 3, but its page table puts"),
    ],
)
def test_slots_outside_their_bounds_are_refused(row, slot, sentence):
    world, rows = setup()
    broken = replace(rows, slots=changed(rows.slots, row, slot))
    with pytest.raises(AttentionContractError, match=sentence):
        world.write(CHECKED, broken)


def test_a_slot_written_twice_is_refused():
    world, rows = setup()
    same = replace(
        rows,
        positions=changed(rows.positions, 2, 97),
        slots=changed(rows.slots, 2, int(rows.slots[1])),
    )
    with pytest.raises(AttentionContractError, match="which another row writes to"):
        world.write(CHECKED, same)


def test_a_page_that_nobody_needs_may_be_anything():
    world, rows = setup()
    idle = replace(
        rows,
        page_table=changed(rows.page_table, (2, slice(1, None)), 99),
        lengths=changed(rows.lengths, 2, 5),
    )
    CHECKED.dense(world.cache, idle, world.queries(rows)[1])


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        ([0, 2, 7, 6], "has a block past the row's own"),
        ([2, -1, 0, 6], "has an id after its padding"),
        ([2, 2, 0, 6], "has a block twice"),
        ([2, 3, 0, 5], "does not end with the row's own block"),
        ([2, 3, 0, -2], "has an id below -1"),
        ([-1, -1, -1, -1], "does not end with the row's own block"),
    ],
)
def test_lists_that_break_the_contract_are_refused(blocks, sentence):
    world, rows = setup()
    index_q, q = world.queries(rows)
    chosen = CHECKED.select(world.cache, rows, index_q, RULE).blocks
    chosen[2, 1] = torch.tensor(blocks)
    with pytest.raises(AttentionContractError, match=f"row 2, head 1, at position 98, {sentence}"):
        CHECKED.sparse(world.cache, rows, q, Selection(chosen))


def test_a_list_of_a_pad_row_is_refused():
    world, rows = setup()
    index_q, q = world.queries(rows)
    chosen = CHECKED.select(world.cache, rows, index_q, RULE).blocks
    chosen[0, 0, 0] = 0
    with pytest.raises(AttentionContractError, match=r"row 0, head 0.*the row is padding"):
        CHECKED.sparse(world.cache, rows, q, Selection(chosen))


class Forgetful(ReferenceBackend):
    """Selects by another rule than it is told."""

    def select(self, cache, rows, index_q, rule):
        return super().select(cache, rows, index_q, SelectionRule(rule.topk_blocks))


def test_a_backend_that_forgets_forced_blocks_is_caught():
    world, rows = setup()
    far = SelectionRule(topk_blocks=4, init_blocks=1, local_blocks=2)
    with pytest.raises(AttentionContractError, match="does not end with its forced blocks"):
        CheckedBackend(Forgetful()).select(world.cache, rows, world.queries(rows)[0], far)
