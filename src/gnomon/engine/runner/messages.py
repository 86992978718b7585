"""Messages between the API process and the engine-core process (msgpack over ZeroMQ)."""

from __future__ import annotations

import msgspec

from gnomon.engine.errors import Refusal
from gnomon.engine.runner.scored import Logprobs
from gnomon.engine.scheduler.request import FinishReason, SamplingParams


class AddRequest(msgspec.Struct, tag="add", frozen=True):
    """Start a generation. The core answers with :class:`TokenOutput` or :class:`Rejected`.

    ``grammar`` is the source of a grammar the output must follow, None for any output.
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    grammar: str | None = None


class AbortRequest(msgspec.Struct, tag="abort", frozen=True):
    """Stop a generation and free its blocks before the next step; unknown ids are ignored."""

    id: str


class StatsRequest(msgspec.Struct, tag="stats", frozen=True):
    """Ask for an :class:`EngineStats` now."""


class FlushCache(msgspec.Struct, tag="flush", frozen=True):
    """Forget every block that no request holds; the answer is an :class:`EngineStats` from after.

    ``host`` forgets what host memory holds too.
    """

    host: bool = False


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True):
    """Abort everything and exit."""


CoreCommand = AddRequest | AbortRequest | StatsRequest | FlushCache | Shutdown


class EngineFacts(msgspec.Struct, tag="facts", frozen=True, kw_only=True):
    """Sent once, after a real forward has run: what is really served, for attestation."""

    model: str
    model_fingerprint: str  # sha256 over config.json and the safetensors files' bytes
    architecture: str
    compute_dtype: str
    device: str
    backend: str
    kv_cache_dtype: str
    index_cache_dtype: str
    layouts: dict[str, int]  # layout name -> bytes of one page of it
    block_size: int
    block_bytes: int
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    selection_reuse: bool
    topk_blocks: int
    seed: int
    speculation: str = "none"
    weights: dict[str, str] = {}  # group of matrices -> formats they are held in
    host_cache_bytes: int = 0  # memory taken, in whole blocks
    host_cache_mode: str = "none"


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens of one request in one step.

    With ``finish_reason`` STOP the last token is the end-of-sequence or stop token itself. A
    request for no tokens has one output without any.

    Attributes:
        logprobs: of each token, if the request asked for them.
        prompt_logprobs: with the first output, if the request asked: of every prompt token from
            the second on.
    """

    id: str
    token_ids: tuple[int, ...]
    num_cached: int = 0
    finish_reason: FinishReason | None = None
    queue_s: float | None = None  # with the first token: the wait for the first step
    logprobs: tuple[Logprobs, ...] = ()
    prompt_logprobs: tuple[Logprobs, ...] = ()


class StepOutput(msgspec.Struct, tag="step", frozen=True):
    """Everything one step produced."""

    outputs: tuple[TokenOutput, ...]


class Rejected(msgspec.Struct, tag="rejected", frozen=True):
    """The request can never run; ``message`` is for the user.

    ``slow``: it ran, but its grammar held up the others.
    """

    id: str
    message: str
    slow: bool = False


class EngineStats(msgspec.Struct, tag="stats", frozen=True, kw_only=True):
    """Counters since start (``*_total``) and gauges now."""

    running: int
    waiting: int
    blocks_total: int
    blocks_used: int  # held by live requests
    blocks_cached: int  # free, but content still findable by prefix
    prefix_queries_total: int  # prompt tokens looked up
    prefix_hits_total: int  # of these, found
    preemptions_total: int
    steps_total: int
    prompt_tokens_total: int
    generation_tokens_total: int
    sanitised_values_total: int  # non-finite cache inputs replaced by the largest code
    host_blocks_total: int = 0  # blocks that fit in host memory
    host_blocks_used: int = 0
    host_loaded_tokens_total: int = 0  # tokens whose cache came back from host memory
    host_evictions_total: int = 0  # blocks that host memory gave up for others
    host_saved_bytes_total: int = 0
    host_loaded_bytes_total: int = 0
    host_save_seconds_total: float = 0.0
    host_load_seconds_total: float = 0.0


class CoreFailed(msgspec.Struct, tag="failed", frozen=True):
    """The core cannot go on (a startup refusal or an internal error); the process then exits.

    ``refusals`` has every broken startup rule, and is empty for any other failure.
    """

    message: str
    startup: bool
    refusals: tuple[Refusal, ...] = ()


CoreEvent = EngineFacts | StepOutput | Rejected | EngineStats | CoreFailed
