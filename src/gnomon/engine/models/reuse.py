"""Selection reuse across sparse layers: which layers run on another layer's block list.

A reusing layer writes K and V only: it has no index key, no scoring and no index page, and attends
to the blocks that the last computing layer of the same forward chose. Off unless asked. The options
keep the names that vLLM and ATOM read from a model config (``use_index_cache``,
``index_topk_freq``, ``index_topk_pattern``, ``index_skip_topk_offset``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SelectionReuse:
    """Which ordinals (index among the SPARSE layers, not the layer id) reuse a selection.

    Attributes:
        freq: every ``freq``-th ordinal computes; 1 computes everywhere.
        pattern: one letter an ordinal, ``F`` computes and ``S`` reuses; ordinals past its end
            compute. Replaces ``freq``.
        skip_offset: leading ordinals that compute whatever ``freq`` says.
    """

    freq: int = 1
    pattern: str | None = None
    skip_offset: int = 0

    def problems(self, num_sparse_layers: int) -> list[str]:
        """Sentences about settings that cannot be meant, empty if there are none."""
        found = []
        if self.freq <= 0:
            found.append(f"index_topk_freq is {self.freq}; it must be 1 (no reuse) or more")
        if self.skip_offset < 0:
            found.append(f"index_skip_topk_offset is {self.skip_offset}; it must be 0 or more")
        if self.pattern is not None:
            found += self._pattern_problems(self.pattern, num_sparse_layers)
        if num_sparse_layers == 0:
            found.append("use_index_cache is set, but the model has no sparse attention layer")
        return found

    def _pattern_problems(self, pattern: str, num_sparse_layers: int) -> list[str]:
        found = []
        unknown = sorted(set(pattern) - {"F", "S"})
        if unknown:
            letters = ", ".join(map(repr, unknown))
            found.append(
                f"index_topk_pattern {pattern!r} has {letters}; write F for a layer that computes "
                "its selection and S for one that reuses it"
            )
        if pattern.startswith("S"):
            found.append(
                f"index_topk_pattern {pattern!r} makes the first sparse layer reuse a selection "
                "that nobody has computed; begin it with F"
            )
        if len(pattern) > num_sparse_layers:
            found.append(
                f"index_topk_pattern has {len(pattern)} letters for {num_sparse_layers} sparse "
                "layers; remove the letters that would change nothing"
            )
        if self.freq > 1:
            found.append(
                f"index_topk_pattern and index_topk_freq {self.freq} both say which layers reuse "
                "a selection; give one of them"
            )
        return found

    def reuses(self, ordinal: int) -> bool:
        """Whether the sparse layer with this ordinal reuses a selection."""
        if self.pattern is not None:
            return ordinal < len(self.pattern) and self.pattern[ordinal] == "S"
        return max(ordinal - self.skip_offset, 0) % self.freq != 0


def reusing_layers(sparse: Sequence[bool], reuse: SelectionReuse | None) -> tuple[bool, ...]:
    """For each layer of the model, whether it reuses a selection (False for dense layers)."""
    flags: list[bool] = []
    ordinal = 0
    for is_sparse in sparse:
        flags.append(bool(is_sparse and reuse is not None and reuse.reuses(ordinal)))
        ordinal += is_sparse
    return tuple(flags)
