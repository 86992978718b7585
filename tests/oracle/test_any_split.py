"""Prefill, chunks, decode, prefix hits, batches and pad rows are one function of the position."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.oracle.paged import PagedModel, same_blocks
from tests.oracle.peer import (
    PeerRun,
    load_engine,
    peer_model,
    random_ids,
    run_peer,
    save_text_only,
    settled_run,
    tiny_config,
)
from transformers import MiniMaxM3VLForCausalLM

from gnomon.engine.options import CacheFormat

LENGTH = 520
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def peer() -> MiniMaxM3VLForCausalLM:
    return peer_model(tiny_config())


@pytest.fixture(scope="module")
def folder(peer: MiniMaxM3VLForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_text_only(peer, tmp_path_factory.mktemp("split"))


@pytest.fixture(scope="module")
def settled(peer: MiniMaxM3VLForCausalLM) -> tuple[list[int], PeerRun]:
    return settled_run(peer, LENGTH)


@pytest.fixture(scope="module")
def ids(settled: tuple[list[int], PeerRun]) -> list[int]:
    return settled[0]


@pytest.fixture(scope="module")
def theirs(settled: tuple[list[int], PeerRun]) -> PeerRun:
    return settled[1]


@pytest.fixture
def paged(folder: Path) -> PagedModel:
    return PagedModel(load_engine(folder), CacheFormat.FP32)


def close(logits: torch.Tensor, expected: torch.Tensor) -> bool:
    same = torch.equal(logits.argmax(-1), expected.argmax(-1))
    return same and bool((logits - expected).abs().max() < TOLERANCE)


@pytest.mark.parametrize("chunk", [1, 16, 37, 128])
def test_chunks_of_any_size_equal_one_full_forward(
    paged: PagedModel, ids: list[int], theirs: PeerRun, chunk: int
) -> None:
    # One token at a time is decode; start it late, where selection drops blocks.
    seq = paged.sequence(ids)
    if chunk == 1:
        paged.step([(seq, LENGTH - 40)])
    paged.prefill(seq, chunk)
    assert close(seq.all_logits(), theirs.logits)
    for layer, blocks in theirs.blocks.items():
        assert same_blocks(seq.all_blocks(layer), blocks)


@pytest.mark.parametrize("shared", [512, 256, 16, 250, 263, 7])
def test_a_prefix_hit_on_or_off_a_block_boundary_changes_nothing(
    paged: PagedModel, ids: list[int], theirs: PeerRun, shared: int
) -> None:
    first = paged.sequence(ids)
    paged.prefill(first)
    second = paged.sequence(ids, prefix=first, shared_tokens=shared)
    paged.prefill(second, chunk=200)
    assert close(second.all_logits(), theirs.logits[shared:])
    for layer, blocks in theirs.blocks.items():
        assert same_blocks(second.all_blocks(layer), blocks[shared:])


def test_requests_at_different_stages_share_a_step_with_pad_rows(
    peer: MiniMaxM3VLForCausalLM, paged: PagedModel, ids: list[int], theirs: PeerRun
) -> None:
    others = [random_ids(n, peer.config.vocab_size, seed=n) for n in (33, 190, 300)]
    long = paged.sequence(ids)
    paged.step([(long, LENGTH - 30)])
    short, middle, late = (paged.sequence(o) for o in others)
    paged.step([(late, 290)])
    # Decode rows, several rows of one request, prefill chunks and padding in the same forward.
    paged.step([(long, 1), (short, 33), (middle, 100), (late, 3)], pads=5)
    paged.step([(long, 8), (middle, 90), (late, 1)], pads=1)
    paged.step([(late, 6), (long, 21)])
    assert close(long.all_logits(), theirs.logits)
    for seq, other in zip((short, middle, late), others, strict=True):
        expected = run_peer(peer, other)
        assert close(seq.all_logits(), expected.logits)
        for layer, blocks in expected.blocks.items():
            assert same_blocks(seq.all_blocks(layer), blocks)


def test_a_pad_row_selects_nothing_and_writes_nothing(paged: PagedModel, ids: list[int]) -> None:
    seq = paged.sequence(ids[:100], extra=4)
    paged.prefill(seq)
    before = [layer.k.clone() for layer in paged.pools.layers]
    rows_before = len(seq.logits)
    seq.ids.append(9)
    paged.step([(seq, 1)], pads=7)
    own = torch.tensor(seq.blocks)
    for old, layer in zip(before, paged.pools.layers, strict=True):
        changed = (old != layer.k).any(-1).any(-1).nonzero().flatten()
        assert set(changed.tolist()) <= {int(own[100 // 16])}
    assert len(seq.logits) == rows_before + 1
    assert bool(torch.isfinite(seq.logits[-1]).all())
    for selection in paged.last_selections:
        if selection is not None:
            assert bool((selection.blocks[1:] == -1).all())


def test_greedy_tokens_are_those_of_a_full_forward_each_time(
    peer: MiniMaxM3VLForCausalLM, paged: PagedModel, ids: list[int]
) -> None:
    count = 12
    prompt = ids[:500]
    expected = list(prompt)
    for _ in range(count):
        expected.append(int(run_peer(peer, expected).logits[-1].argmax()))

    whole = paged.sequence(prompt, extra=count)
    paged.prefill(whole)
    chunked = paged.sequence(prompt, extra=count)
    paged.prefill(chunked, 61)
    hit = paged.sequence(prompt, extra=count, prefix=whole, shared_tokens=300)
    paged.prefill(hit)
    for seq in (whole, chunked, hit):
        assert paged.greedy(seq, count) == expected[len(prompt) :]


def test_a_preempted_request_recomputes_to_the_same_tokens(
    paged: PagedModel, ids: list[int]
) -> None:
    seq = paged.sequence(ids[:400], extra=10)
    paged.prefill(seq)
    straight = paged.greedy(seq, 10)
    again = paged.sequence(ids[:400], extra=10)
    paged.prefill(again)
    start = paged.greedy(again, 4)
    resumed = paged.sequence(again.ids[:404], extra=6)  # other pages, everything recomputed
    paged.prefill(resumed, 150)
    assert start + paged.greedy(resumed, 6) == straight
