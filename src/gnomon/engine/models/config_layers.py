"""Which layers of a model are dense or sparse, MLP or experts, and which reuse a selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gnomon.engine.models.config_fields import FieldReader
from gnomon.engine.models.reuse import SelectionReuse, reusing_layers

SPARSE = "sparse_attention_config"


@dataclass(frozen=True)
class LayerConfig:
    """One decoder layer.

    Attributes:
        attention: over every page, or over the selected blocks only.
        mlp: one dense SwiGLU, or routed experts plus a shared one.
        reuses_selection: a sparse layer that attends to another layer's blocks; it owns no index
            projections in use, no index page, and writes K and V only.
    """

    attention: Literal["dense", "sparse"]
    mlp: Literal["dense", "moe"]
    reuses_selection: bool = False

    @property
    def owns_index(self) -> bool:
        """Whether the layer writes index keys and selects blocks itself."""
        return self.attention == "sparse" and not self.reuses_selection


def read_layers(
    read: FieldReader, num_layers: int, override: SelectionReuse | None
) -> tuple[LayerConfig, ...]:
    """The per-layer lists, each in its two spellings; ``override`` replaces the file's reuse."""
    sparse = read.flags(
        f"{SPARSE}.sparse_attention_freq",
        "layer_types",
        {"full_attention": False, "minimax_m3_sparse": True},
        num_layers,
    )
    moe = read.flags(
        "moe_layer_freq", "mlp_layer_types", {"dense": False, "sparse": True}, num_layers
    )
    if read.find(f"{SPARSE}.use_sparse_attention") is False and any(sparse):
        read.problem(
            f"{SPARSE}.use_sparse_attention is false, but layers "
            f"{[i for i, s in enumerate(sparse) if s]} are sparse",
            "layer_types",
        )
    _check_index_value(read, sparse)
    reuse = override if override is not None else _reuse_of_file(read)
    if reuse is not None:
        found = reuse.problems(sum(sparse))
        for message in found:
            read.problem(message)
        reuse = None if found else reuse
    return tuple(
        LayerConfig("sparse" if s else "dense", "moe" if m else "dense", r)
        for s, m, r in zip(sparse, moe, reusing_layers(sparse, reuse), strict=True)
    )


def _check_index_value(read: FieldReader, sparse: tuple[bool, ...]) -> None:
    """The index branch has no value projection, so every sparse layer must disable it."""
    field = f"{SPARSE}.sparse_disable_index_value"
    disabled = read.find(field)
    if disabled is None:
        return
    if not isinstance(disabled, list) or len(disabled) != len(sparse):
        read.problem(f"{field} must be a list with one entry a layer", field)
        return
    wrong = [i for i, (s, d) in enumerate(zip(sparse, disabled, strict=True)) if s and not d]
    if wrong:
        read.problem(f"{field} is 0 at sparse layers {wrong}; an index value branch is not "
                     "implemented", field)  # fmt: skip


def _reuse_of_file(read: FieldReader) -> SelectionReuse | None:
    if not read.find("use_index_cache"):
        return None
    freq, pattern = read.find("index_topk_freq"), read.find("index_topk_pattern")
    offset = read.find("index_skip_topk_offset")
    for field, value, kind in (
        ("index_topk_freq", freq, int),
        ("index_topk_pattern", pattern, str),
        ("index_skip_topk_offset", offset, int),
    ):
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
            read.problem(f"{field} is {value!r}; it must be of type {kind.__name__}", field)
            return None
    return SelectionReuse(1 if freq is None else freq, pattern, offset or 0)
