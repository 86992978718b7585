"""Everything that decides what one server is, except how many sessions it gets.

`Serving` is what an adapter renders, what the memory planner prices, and what an evaluation must
share with a load point to count for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Tag

from gnomon.harness.recipes.engine_spec import EngineSpec
from gnomon.harness.recipes.flags import Count, Flag
from gnomon.harness.recipes.model_spec import CacheLayoutName, ModelSpec, SpeculationSpec
from gnomon.harness.recipes.place_spec import HardwareSpec, OffloadSpec, Parallelism, Topology


class KvSpec(BaseModel):
    """The device's caches.

    Attributes:
        layout: of keys and values.
        index_layout: of index keys; None follows ``layout``.
        draft_layout: of the draft's own pool; None is the engine's choice.
        block_size: tokens a block; None is the engine's choice.
        prefix_caching: whether blocks of equal beginnings are shared.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    layout: Flag[CacheLayoutName] | None = None
    index_layout: Flag[CacheLayoutName] | None = None
    draft_layout: Flag[CacheLayoutName] | None = None
    block_size: Flag[Count] | None = None
    prefix_caching: Flag[bool] | None = None


class LimitsSpec(BaseModel):
    """How much the server takes on at a time.

    Attributes:
        max_model_len: most tokens of a request; None is the model's context.
        max_num_seqs: requests that run at a time, for every concurrency alike.
        seqs_per_session: the same for each session: concurrency counts session trees, whose
            sub-agents ask at the same time. Not beside ``max_num_seqs``.
        max_num_batched_tokens: token budget of a step.
        graph_tokens: largest captured graph in tokens; ``from_sequences`` is the sequences of one
            data-parallel rank times the tokens each verifies in a step.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_model_len: Flag[Count] | None = None
    max_num_seqs: Flag[Count] | None = None
    seqs_per_session: Flag[Count] | None = None
    max_num_batched_tokens: Flag[Count] | None = None
    graph_tokens: Flag[Literal["from_sequences"] | Count] | None = None


def _whether(value: object) -> str:
    """Tag of a section that may be absent: a mapping or a model describes it, a word denies it."""
    return "described" if isinstance(value, Mapping | BaseModel) else "denied"


_NONE = Annotated[Literal["none"], Tag("denied")]
Offload = Annotated[Annotated[OffloadSpec, Tag("described")] | _NONE, Discriminator(_whether)]
Speculation = Annotated[
    Annotated[SpeculationSpec, Tag("described")] | _NONE, Discriminator(_whether)
]


class Serving(BaseModel):
    """What one deployment is.

    Attributes:
        model: what is served.
        engine: by which program.
        hardware: on which kind of server.
        topology: in which shape.
        kv: the caches.
        limits: of a step and of a request.
        offload: the second tier, or ``none``.
        speculation: drafts, or ``none``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: ModelSpec
    engine: EngineSpec
    hardware: HardwareSpec
    topology: Topology
    kv: KvSpec = KvSpec()
    limits: LimitsSpec = LimitsSpec()
    offload: Offload = "none"
    speculation: Speculation = "none"

    @property
    def kv_layout(self) -> str:
        """Layout of keys and values, as a memory plan needs it."""
        layout = self.kv.layout.value if self.kv.layout is not None else "auto"
        return "bf16" if layout == "auto" else layout

    @property
    def index_layout(self) -> str:
        """Layout of index keys."""
        given = self.kv.index_layout.value if self.kv.index_layout is not None else "auto"
        return self.kv_layout if given == "auto" else given

    @property
    def drafted(self) -> SpeculationSpec | None:
        """The drafts, None without."""
        return self.speculation if isinstance(self.speculation, SpeculationSpec) else None

    @property
    def tier(self) -> OffloadSpec | None:
        """The second tier, None without."""
        return self.offload if isinstance(self.offload, OffloadSpec) else None

    @property
    def verified_tokens(self) -> int:
        """Tokens of one sequence in a decoding step: itself and its drafts."""
        return 1 + (self.drafted.tokens if self.drafted is not None else 0)

    @property
    def longest_request(self) -> int | None:
        """Most tokens of a request, None where neither recipe nor model says."""
        if self.limits.max_model_len is not None:
            return self.limits.max_model_len.value
        return self.model.context

    def sequences(self, concurrency: int) -> int | None:
        """Requests the server must run at a time for this many sessions; None: its own default."""
        if self.limits.max_num_seqs is not None:
            return self.limits.max_num_seqs.value
        if self.limits.seqs_per_session is not None:
            return self.limits.seqs_per_session.value * concurrency
        return None

    def rank_sequences(self, concurrency: int, ranks: Parallelism | None = None) -> int | None:
        """Sequences of one data-parallel rank, each of which has a scheduler of its own.

        Args:
            concurrency: sessions alive at once.
            ranks: parallelism of one worker; of the deployment by default.
        """
        sequences = self.sequences(concurrency)
        if sequences is None:
            return None
        shape = ranks or self.topology
        return -(-sequences // (shape.tp if shape.dp_attention else shape.dp))

    def graph_tokens(self, concurrency: int, ranks: Parallelism | None = None) -> int | None:
        """Largest captured graph in tokens of one data-parallel rank; None: the engine's default.

        The ladder of decoding graphs counts tokens, not sequences; and each data-parallel rank
        runs only its share of the sequences (sizing it for all of them runs out of memory at
        capture).

        Args:
            concurrency: sessions alive at once.
            ranks: parallelism of one worker; of the deployment by default.
        """
        rule = self.limits.graph_tokens
        if rule is None or rule.value != "from_sequences":
            return rule.value if rule is not None and isinstance(rule.value, int) else None
        sequences = self.rank_sequences(concurrency, ranks)
        return None if sequences is None else sequences * self.verified_tokens
