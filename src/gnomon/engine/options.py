"""What the user asked of the engine, parsed once into types.

Dtype spellings are normalised here and nowhere else, so that no later module compares strings.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, field_validator


class CacheFormat(StrEnum):
    """How keys, values and index keys are stored in pages (see :mod:`gnomon.engine.layouts`)."""

    FP32 = "fp32"  # the lossless reference format, for oracle parity
    BF16 = "bf16"
    FP8 = "fp8"
    MXFP4 = "mxfp4"
    NVFP4 = "nvfp4"


class WeightFormat(StrEnum):
    """How a matrix of weights is stored (see :mod:`gnomon.engine.models.weight_formats`)."""

    PLAIN = "bf16"  # not quantised: held in the compute dtype
    MXFP8 = "mxfp8"
    MXFP4 = "mxfp4"
    NVFP4 = "nvfp4"


class HostCacheMode(StrEnum):
    """When blocks are saved to host memory (see :mod:`gnomon.engine.cache.host_tier`)."""

    EAGER = "eager"  # once they are full
    LAZY = "lazy"  # once they are evicted


class LoadFormat(StrEnum):
    """Where weights come from: the checkpoint's files, or random numbers of the same shapes."""

    AUTO = "auto"
    DUMMY = "dummy"


CACHE_FORMAT_SPELLINGS: dict[str, CacheFormat] = {
    **{fmt.value: fmt for fmt in CacheFormat},
    "auto": CacheFormat.BF16,
    "float32": CacheFormat.FP32,
    "bfloat16": CacheFormat.BF16,
    "fp8_e4m3": CacheFormat.FP8,
    "fp4": CacheFormat.MXFP4,
}


class ComputeDtype(StrEnum):
    """Dtype of weights and activations. AUTO is float32 on CPU and bfloat16 on a GPU."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def parse_cache_format(value: object) -> CacheFormat:
    """Turn any accepted spelling into a :class:`CacheFormat`.

    Raises:
        ValueError: the spelling is unknown; the message lists the accepted ones.
    """
    fmt = CACHE_FORMAT_SPELLINGS.get(str(value).lower())
    if fmt is None:
        known = ", ".join(sorted(CACHE_FORMAT_SPELLINGS))
        raise ValueError(f"unknown cache format {value!r}; choose one of {known}")
    return fmt


class EngineOptions(BaseModel):
    """Options of one engine; the CLI flags of ``gnomon serve`` have the same names with dashes.

    Sizes left at None are derived from the model (``max_model_len``, ``block_size``) or from the
    memory budget (``num_blocks``).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    dtype: ComputeDtype = ComputeDtype.AUTO
    load_format: LoadFormat = LoadFormat.AUTO
    expert_weights: WeightFormat | None = None  # None keeps what the checkpoint holds
    linear_weights: WeightFormat | None = None
    seed: int = Field(default=0, ge=-(2**63), le=2**63 - 1)
    max_model_len: int | None = Field(default=None, ge=1)
    max_num_seqs: int = Field(default=16, ge=1)
    max_num_batched_tokens: int = Field(default=2048, ge=1)
    kv_cache_dtype: CacheFormat = CacheFormat.BF16
    index_cache_dtype: CacheFormat | None = None  # None follows kv_cache_dtype
    block_size: int | None = Field(default=None, ge=1)
    enable_prefix_caching: bool = True
    kv_cache_memory_bytes: int | None = Field(default=None, ge=1)  # None: see memory.py
    num_blocks: int | None = Field(default=None, ge=1)  # overrides kv_cache_memory_bytes
    host_cache_bytes: int = Field(default=0, ge=0)  # pages kept in host memory; 0 keeps none
    host_cache_mode: HostCacheMode = HostCacheMode.EAGER
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    allow_shared_gpu: bool = False
    tensor_parallel_size: int = Field(default=1, ge=1)
    decode_context_parallel_size: int = Field(default=1, ge=1)
    prefill_context_parallel_size: int = Field(default=1, ge=1)
    index_context_parallel_size: int = Field(default=1, ge=1)
    sequence_parallel_size: int = Field(default=1, ge=1)
    use_index_cache: bool = False  # selection reuse across layers, off unless asked
    index_topk_freq: int = Field(default=1, ge=1)
    index_topk_pattern: str | None = None
    index_skip_topk_offset: int = Field(default=0, ge=0)

    @field_validator("kv_cache_dtype", "index_cache_dtype", mode="before")
    @classmethod
    def _parse_formats(cls, value: object) -> CacheFormat | None:
        return None if value is None else parse_cache_format(value)

    @property
    def index_format(self) -> CacheFormat:
        """Format of the index keys: what was asked, else that of the K and V cache."""
        return self.index_cache_dtype or self.kv_cache_dtype
