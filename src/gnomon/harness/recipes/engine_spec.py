"""Which program serves, from which build, with which of its own settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gnomon.harness.recipes.flags import (
    AtomFlags,
    DynamoFlags,
    EnvName,
    Flag,
    Flags,
    GnomonFlags,
    SglangFlags,
    TrtllmFlags,
    VllmFlags,
)
from gnomon.harness.recipes.quantities import ByteSize

Digest = Annotated[str, Field(pattern=r"^(unknown|sha256:[0-9a-f]{64})$")]


class ImageSpec(BaseModel):
    """A container image. A tag can be moved, so only the digest says what ran.

    Attributes:
        reference: repository and tag, for people.
        digest: of the manifest; ``unknown`` forbids publishing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    reference: Annotated[str, Field(min_length=1)]
    digest: Digest


class ReserveSpec(BaseModel):
    """Device memory of one rank that is neither weights nor cache: estimates, with their source.

    Attributes:
        profiled: activations, workspaces and graphs, which the engine measures at startup and
            takes from its budget.
        outside_budget: contexts, communication buffers and whatever else it does not measure.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    profiled: ByteSize = 0
    outside_budget: ByteSize = 0


class EngineBase(BaseModel):
    """What every engine's section has.

    Attributes:
        version: release, as the engine tells it.
        image: where it runs in a container; None runs the program that is installed.
        reserve: for the memory plan.
        env: variables of the server's process, each with its reason.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str | None = None
    image: ImageSpec | None = None
    reserve: ReserveSpec = ReserveSpec()
    env: dict[EnvName, Flag[str]] = {}

    @property
    def settings(self) -> Flags:
        """The engine's own flags, whichever engine it is."""
        flags = getattr(self, "flags", None)
        assert isinstance(flags, Flags)
        return flags


class GnomonEngine(EngineBase):
    """This project's engine."""

    name: Literal["gnomon"]
    flags: GnomonFlags = GnomonFlags()


class VllmEngine(EngineBase):
    """vLLM's OpenAI server."""

    name: Literal["vllm"]
    flags: VllmFlags = VllmFlags()


class SglangEngine(EngineBase):
    """SGLang's server."""

    name: Literal["sglang"]
    flags: SglangFlags = SglangFlags()


class TrtllmEngine(EngineBase):
    """TensorRT-LLM's ``trtllm-serve``."""

    name: Literal["trtllm"]
    flags: TrtllmFlags = TrtllmFlags()


class AtomEngine(EngineBase):
    """ATOM's OpenAI server."""

    name: Literal["atom"]
    flags: AtomFlags = AtomFlags()


class DynamoEngine(EngineBase):
    """vLLM workers behind a Dynamo frontend.

    Attributes:
        dynamo_version: release of the frontend.
        prefill_flags: flags of prefill workers only.
        decode_flags: flags of decode workers only.
    """

    name: Literal["dynamo-vllm"]
    dynamo_version: str | None = None
    flags: DynamoFlags = DynamoFlags()
    prefill_flags: DynamoFlags = DynamoFlags()
    decode_flags: DynamoFlags = DynamoFlags()


EngineSpec = Annotated[
    GnomonEngine | VllmEngine | SglangEngine | TrtllmEngine | AtomEngine | DynamoEngine,
    Field(discriminator="name"),
]
ENGINES: dict[str, type[EngineBase]] = {
    "gnomon": GnomonEngine,
    "vllm": VllmEngine,
    "sglang": SglangEngine,
    "trtllm": TrtllmEngine,
    "atom": AtomEngine,
    "dynamo-vllm": DynamoEngine,
}
