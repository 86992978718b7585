"""Every backend passes the same tests: add one to BACKENDS and nothing else.

The Triton kernels run on a GPU if there is one: then they face every test here. In Triton's
interpreter a program takes milliseconds, so without a GPU they face the tests of
:data:`INTERPRETED` only, plus those of test_triton.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gnomon.engine.attention.backend import AttentionBackend
from gnomon.engine.attention.reference.backend import ReferenceBackend
from gnomon.engine.attention.triton.backend import TritonBackend

from .paged import OnGpu

ON_GPU = torch.cuda.is_available()  # else tests/conftest.py has switched to the interpreter

BACKENDS: dict[str, Callable[[], AttentionBackend]] = {
    "reference": ReferenceBackend,
    "triton": (lambda: OnGpu(TritonBackend())) if ON_GPU else TritonBackend,
}

#: Tests whose steps have few rows: about a second each in the interpreter.
INTERPRETED = {
    "test_history_comes_by_score_and_the_own_block_last",
    "test_on_a_tie_the_lower_block_wins",
    "test_a_tie_at_the_cut_goes_to_the_lower_block",
    "test_signed_zeros_are_equal",
    "test_magnitudes_do_not_confuse_the_order",
    "test_a_nan_block_is_never_chosen",
    "test_a_negative_nan_is_a_nan",
    "test_a_nan_block_is_kept_if_forced",
    "test_infinite_scores_are_scores",
    "test_forced_blocks_follow_history_in_ascending_order",
    "test_few_visible_blocks_are_all_chosen",
    "test_a_batch_of_pads_selects_nothing",
    "test_a_rule_that_cannot_be_kept_is_an_error",
    "test_a_pad_row_writes_nothing_and_outputs_zero",
    "test_a_row_that_selects_nothing_outputs_zero",
    "test_a_block_after_the_row_is_not_seen_even_if_selected",
    "test_rows_of_another_block_size_are_refused",
    "test_rewriting_a_slot_replaces_the_token",
    "test_a_layer_that_reuses_a_selection_owns_no_index_page",
    "test_values_that_are_not_finite_are_counted_and_stored_finite",
    "test_garbage_in_pad_rows_is_not_counted",
    "test_a_block_of_drafts_sees_the_context_and_itself",
    "test_every_bit_is_the_references",
    "test_pages_of_128_by_128_hold_the_references_bits",
    "test_heads_match_the_formula",
    "test_a_row_without_a_slot_writes_nothing_but_has_queries",
    "test_a_layer_without_an_index_branch_has_no_index_queries",
    "test_index_queries_in_e4m3_are_nearest_and_saturate",
    "test_what_is_not_finite_is_counted_once",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a GPU, leave the Triton backend the tests that the interpreter can do in time."""
    if ON_GPU:
        return
    here = [item for item in items if "triton" in _backend_of(item)]
    dropped = [item for item in here if item.originalname not in INTERPRETED]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in set(dropped)]


def _backend_of(item: pytest.Item) -> set[object]:
    callspec = getattr(item, "callspec", None)
    params = {} if callspec is None else callspec.params
    return {params.get("backend"), params.get("name")}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    return BACKENDS[request.param]()
