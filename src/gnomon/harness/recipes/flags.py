"""Engine flags: what a recipe may set on each engine beside the plan, and why it does.

What the plan says already (parallelism, cache layouts, limits, speculation, offload, parsers) is
rendered by the engine's adapter and is not a flag: two places for one setting is how a declared
row and a served one came apart.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Value = TypeVar("Value")

Count = Annotated[int, Field(ge=1, strict=True)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Sentence = Annotated[str, StringConstraints(strip_whitespace=True, min_length=8)]
Json = dict[str, Any]


class Flag(BaseModel, Generic[Value]):
    """One engine flag and the reason why it is set.

    Attributes:
        value: what is passed to the engine.
        why: what would go wrong, or be different, without it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    value: Value
    why: Sentence


class Flags(BaseModel):
    """Flags of one engine, by its own names with underscores; None is not passed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


ComputeDtypeName = Literal["auto", "float32", "bfloat16"]


class GnomonFlags(Flags):
    """Flags of ``gnomon serve``."""

    dtype: Flag[ComputeDtypeName] | None = None
    kv_cache_memory_bytes: Flag[Count] | None = None
    num_blocks: Flag[Count] | None = None
    seed: Flag[Annotated[int, Field(ge=0)]] | None = None


class VllmFlags(Flags):
    """Flags of ``vllm serve``."""

    gpu_memory_utilization: Flag[Fraction] | None = None
    cpu_offload_gb: Flag[Annotated[float, Field(gt=0)]] | None = None
    language_model_only: Flag[bool] | None = None
    attention_backend: Flag[str] | None = None
    attention_config: Flag[Json] | None = None
    compilation_config: Flag[Json] | None = None
    draft_attention_backend: Flag[str] | None = None
    enable_flashinfer_autotune: Flag[bool] | None = None
    enable_prompt_tokens_details: Flag[bool] | None = None
    stream_interval: Flag[Count] | None = None
    safetensors_load_strategy: Flag[Literal["lazy", "eager"]] | None = None
    load_format: Flag[str] | None = None
    moe_backend: Flag[str] | None = None
    dcp_comm_backend: Flag[str] | None = None
    trust_remote_code: Flag[bool] | None = None
    hf_overrides: Flag[Json] | None = None
    seed: Flag[Annotated[int, Field(ge=0)]] | None = None


class SglangFlags(Flags):
    """Flags of ``python -m sglang.launch_server``."""

    mem_fraction_static: Flag[Fraction] | None = None
    attention_backend: Flag[str] | None = None
    chunked_prefill_size: Flag[Count] | None = None
    stream_interval: Flag[Count] | None = None
    enable_metrics: Flag[bool] | None = None
    schedule_policy: Flag[str] | None = None
    trust_remote_code: Flag[bool] | None = None
    json_model_override_args: Flag[Json] | None = None
    random_seed: Flag[Annotated[int, Field(ge=0)]] | None = None


class TrtllmFlags(Flags):
    """Settings of ``trtllm-serve``: arguments and keys of its extra options file."""

    free_gpu_memory_fraction: Flag[Fraction] | None = None
    block_reuse_policy: Flag[Literal["default", "per_conversation"]] | None = None
    capacity_scheduler_policy: Flag[str] | None = None
    enable_chunked_prefill: Flag[bool] | None = None
    stream_interval: Flag[Count] | None = None
    moe_backend: Flag[str] | None = None
    trust_remote_code: Flag[bool] | None = None


class AtomFlags(Flags):
    """Flags of ATOM's OpenAI server."""

    gpu_memory_utilization: Flag[Fraction] | None = None
    online_quant_config: Flag[Json] | None = None
    hf_overrides: Flag[Json] | None = None
    cudagraph_mode: Flag[str] | None = None
    trust_remote_code: Flag[bool] | None = None


class DynamoFlags(VllmFlags):
    """Flags of the vLLM workers behind a Dynamo frontend."""


FlagValue = str | int | float | bool
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")]


def set_flags(flags: Flags) -> dict[str, Any]:
    """The flags without their reasons, in the schema's order; unset ones left out."""
    present = ((name, getattr(flags, name)) for name in type(flags).model_fields)
    return {name: flag.value for name, flag in present if flag is not None}
