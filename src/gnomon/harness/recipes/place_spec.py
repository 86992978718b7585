"""Where and in what shape a model is served: hardware, parallelism, workers, host memory."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gnomon.harness.recipes.flags import Count, Fraction, Sentence
from gnomon.harness.recipes.quantities import MIB, ByteSize


class HardwareSpec(BaseModel):
    """One kind of server.

    Attributes:
        name: key of the capability matrix (``h100``, ``mi355x``, ``cpu``).
        vendor: who makes the accelerators.
        gpus_per_node: accelerators of one server, 0 on a CPU.
        gpu_memory: of one accelerator, as its driver reports it.
        host_dram_mib: memory of the server that may hold caches.
        dram_capped: whether the fair-share cap of 3 TB a server applies.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    vendor: Literal["nvidia", "amd", "none"]
    gpus_per_node: Annotated[int, Field(ge=0)]
    gpu_memory: ByteSize = 0
    host_dram_mib: Annotated[int, Field(ge=0)] = 0
    dram_capped: bool = True

    @property
    def host_dram(self) -> int:
        """Bytes of host memory."""
        return self.host_dram_mib * MIB


class Parallelism(BaseModel):
    """How one replica is spread over accelerators.

    Attributes:
        tp: tensor parallel size.
        pp: pipeline parallel size.
        dp: data parallel size; without ``dp_attention`` whole replicas.
        dp_attention: attention runs data parallel over the ``tp`` accelerators, experts stay
            sharded over them.
        ep: ranks the experts are spread over; 1 shards every expert instead.
        dcp: ranks that share the cache of a decoding request; does not add accelerators.
        pcp: ranks that share a prompt; multiplies accelerators.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    tp: Count = 1
    pp: Count = 1
    dp: Count = 1
    dp_attention: bool = False
    ep: Count = 1
    dcp: Count = 1
    pcp: Count = 1

    @property
    def gpus(self) -> int:
        """Accelerators of one replica: ep and dcp reuse those of tp."""
        return self.tp * self.pp * self.pcp * self.dp

    @model_validator(mode="after")
    def _sizes_divide(self) -> Self:
        if self.tp % self.dcp:
            raise ValueError(f"tp {self.tp} is not a multiple of dcp {self.dcp}; change one")
        if self.ep > 1 and (self.tp * self.dp) % self.ep:
            raise ValueError(
                f"ep {self.ep} does not divide the {self.tp * self.dp} ranks of tp x dp; change one"
            )
        if self.dp_attention and self.dp > 1:
            raise ValueError(
                "dp_attention runs over the tp accelerators already; leave dp at 1 with it"
            )
        return self


class Worker(Parallelism):
    """The prefill or the decode half of a disaggregated deployment.

    Attributes:
        workers: replicas; 0 decode workers mean that the prefill workers do both.
    """

    workers: Annotated[int, Field(ge=0)]


class Router(BaseModel):
    """What stands between clients and several replicas.

    Attributes:
        name: program.
        version: release.
        affinity: how the turns of a session find the replica that caches them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1)]
    version: Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z._-]*$")]
    affinity: Literal["consistent_hash", "kv", "random"]


class Topology(Parallelism):
    """One replica, or prefill and decode workers: never both.

    Attributes:
        prefill: workers that read prompts.
        decode: workers that write answers.
        transfer: how caches move from one to the other.
        router: what balances them; needed with several replicas.
    """

    prefill: Worker | None = None
    decode: Worker | None = None
    transfer: Literal["nixl", "mori", "mooncake"] | None = None
    router: Router | None = None

    @property
    def disaggregated(self) -> bool:
        """Whether prompts are read and answers written by different workers."""
        return self.decode is not None and self.decode.workers > 0

    @property
    def multinode(self) -> bool:
        """Whether it is written as workers."""
        return self.prefill is not None

    @property
    def total_gpus(self) -> int:
        """Accelerators of the whole deployment: the denominator of every per-GPU number."""
        if self.prefill is None or self.decode is None:
            return self.gpus
        return self.prefill.workers * self.prefill.gpus + self.decode.workers * self.decode.gpus

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        single = Parallelism.model_fields.keys() & self.model_fields_set
        if (self.prefill is None) != (self.decode is None):
            raise ValueError("prefill and decode come together; add the other or remove both")
        if self.prefill is not None and single:
            raise ValueError(
                f"{', '.join(sorted(single))} beside prefill and decode: say it of the workers"
            )
        if self.prefill is None and "tp" not in single:
            raise ValueError("needs tp, or prefill and decode; add one of them")
        if self.prefill is not None and self.prefill.workers < 1:
            raise ValueError(
                "prefill.workers must be at least 1; an aggregated deployment has 0 decode workers"
            )
        if self.disaggregated and self.transfer is None:
            raise ValueError("decode workers need transfer: how caches reach them; add it")
        if not self.disaggregated and self.transfer is not None:
            raise ValueError(f"transfer {self.transfer} without decode workers; remove it")
        return self


OffloadBackend = Literal["mooncake", "lmcache", "vllm-simple", "native", "hicache"]


class OffloadSpec(BaseModel):
    """Host memory as a second tier of the cache.

    Attributes:
        backend: what moves pages.
        version: of the backend; None where it is part of the engine.
        dram_share: fraction of the replica's fair share of host memory it may use.
        page_cache: host memory left to the checkpoint's pages, for the whole replica.
        local_buffer: host memory of one rank that is not cache.
        why: this backend and this share.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: OffloadBackend
    version: str | None = None
    dram_share: Fraction
    page_cache: ByteSize = 0
    local_buffer: ByteSize = 0
    why: Sentence
