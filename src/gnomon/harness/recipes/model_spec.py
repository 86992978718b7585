"""What is served: the model, its draft, and what their caches cost."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gnomon.harness.recipes.flags import Count, Json, Sentence
from gnomon.harness.recipes.quantities import UNKNOWN, ByteSize, MaybeBytes, Unknown

CacheLayoutName = Literal["auto", "bf16", "fp32", "fp8", "mxfp4", "nvfp4"]
Revision = Annotated[str, Field(pattern=r"^(unknown|[0-9a-f]{7,64})$")]
Thinking = Literal["enabled", "disabled"]
Precision = Literal["bf16", "fp32", "mxfp8", "fp8", "nvfp4", "mxfp4", "int4"]


class CacheShape(BaseModel):
    """What one token leaves in the caches, before any sharding.

    Attributes:
        layers: layers with keys and values.
        kv_heads: heads of each; a rank keeps ``max(1, kv_heads / tp)`` of them.
        head_dim: elements of one key or value.
        index_layers: layers that also keep an index key, which every rank keeps whole.
        index_dim: elements of one index key.
        window: tokens a request keeps at most; None keeps all.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: Count
    kv_heads: Count
    head_dim: Count
    index_layers: Annotated[int, Field(ge=0)] = 0
    index_dim: Annotated[int, Field(ge=0)] = 0
    window: Count | None = None


class ParserNames(BaseModel):
    """How the model's text becomes calls and reasoning, by the engines' common names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str
    reasoning: str


class ModelSpec(BaseModel):
    """What is served.

    Attributes:
        path: a checkpoint directory, a hub id, or a name the engine knows (``nano``).
        weights: ``random`` says that the weights were never trained: quality then does not apply,
            and no report may pretend that it does.
        family: what golden acceptance curves call the target; by default none belongs to it.
        revision: of the checkpoint; ``unknown`` forbids publishing, None is a local directory that
            attestation identifies by content.
        precision: of the weights.
        checkpoint_bytes: size on disk, for the memory plan.
        context: most tokens of a request the model was made for.
        cache: what a token costs.
        block_size: tokens of one sparse block; the engine's block must equal it.
        parsers: of its replies; None leaves the engine's defaults.
        thinking_kwargs: what its chat template takes for each mode, so that the mode served is the
            mode whose golden curve is forced.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Annotated[str, Field(min_length=1)]
    weights: Literal["trained", "random"]
    family: str | None = None
    revision: Revision | None = None
    precision: Precision | Unknown = UNKNOWN
    checkpoint_bytes: MaybeBytes = UNKNOWN
    context: Count | None = None
    cache: CacheShape | Unknown = UNKNOWN
    block_size: Count | None = None
    parsers: ParserNames | None = None
    thinking_kwargs: dict[Thinking, Json] = {}

    @property
    def served_name(self) -> str:
        """Name the model is served under: the last part of its path."""
        return self.path.rstrip("/").rpartition("/")[2] or "model"


class DraftSpec(BaseModel):
    """A draft head, which decides which golden curve holds.

    Attributes:
        path: hub id or directory.
        revision: of its checkpoint.
        checkpoint_bytes: size on disk, at least.
        cache: what a token costs in the draft's own pool.
        attention: of its layers, which decides the kernels that can serve it.
        outside_budget: device memory it takes beside the engine's budget, on one rank.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Annotated[str, Field(min_length=1)]
    revision: Revision
    checkpoint_bytes: MaybeBytes = UNKNOWN
    cache: CacheShape | Unknown = UNKNOWN
    attention: Literal["mha", "gqa", "mla"] | Unknown = UNKNOWN
    outside_budget: ByteSize = 0


class SpeculationSpec(BaseModel):
    """How drafts are made and judged. The acceptance length is looked up, never written.

    Attributes:
        method: of the draft head.
        draft: the head.
        tokens: drafts of one step, K; a step then verifies K + 1 tokens.
        thinking: mode of the chat template, which is a column of the golden curve.
        sampling: which curve of a draft that has several, by its sampling method.
        acceptance: ``golden`` forces the curve's length while load is measured (an evaluation
            always verifies for real), ``real`` never forces.
        why: this head and this K.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Literal["eagle3", "dspark", "mtp"]
    draft: DraftSpec
    tokens: Annotated[int, Field(ge=1, le=16)]
    thinking: Thinking
    sampling: Literal["default", "probabilistic"] = "default"
    acceptance: Literal["golden", "real"] = "golden"
    why: Sentence
