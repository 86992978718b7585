"""The packed keys of the reference's top-k order scores as the rule says, for any fp32 bits."""

from __future__ import annotations

import math

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from gnomon.engine.attention.reference.select import _NEVER, _block_of_key, _sort_keys


@given(scores=st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=40))
@example(scores=[-0.0, 0.0, -0.0])
@example(scores=[0.0, -0.0, 0.0])
@example(scores=[-math.inf, math.inf, -1e-45, 1e-45, -0.0])
def test_keys_sort_by_score_then_by_lower_block(scores):
    blocks = torch.arange(len(scores)) + 5
    keys = _sort_keys(torch.tensor(scores), blocks)
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    assert keys.argsort(descending=True).tolist() == expected
    assert torch.equal(_block_of_key(keys), blocks)
    assert (keys > _NEVER).all()


@given(block=st.integers(0, 2**31 - 1), score=st.floats(width=32, allow_nan=False))
def test_any_block_id_survives_packing(block, score):
    key = _sort_keys(torch.tensor([score]), torch.tensor([block]))
    assert _block_of_key(key).item() == block


def test_every_nan_is_below_every_score():
    bits = torch.tensor([0x7FC00000, 0x7F800001, -0x400000, -1], dtype=torch.int32)
    keys = _sort_keys(bits.view(torch.float32), torch.arange(4))
    assert (keys == _NEVER).all()
