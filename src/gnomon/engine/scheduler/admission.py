"""Refusing requests that could never run, whatever else is going on."""

from __future__ import annotations

import math

from gnomon.engine.cache.manager import BlockManager
from gnomon.engine.errors import AdmissionError
from gnomon.engine.scheduler.config import SchedulerConfig
from gnomon.engine.scheduler.request import Request, SamplingParams


def check_admission(request: Request, config: SchedulerConfig, blocks: BlockManager) -> None:
    """Check a request against the limits of the engine.

    Raises:
        AdmissionError: the first reason why it can never run, with the numbers.
    """
    _check_sampling(request.sampling)
    prompt, output = len(request.prompt_ids), request.sampling.max_tokens
    if prompt < 1:
        raise AdmissionError("the prompt is empty; it needs at least one token")
    if prompt + output > config.max_model_len:
        raise AdmissionError(
            f"this model's maximum context length is {config.max_model_len} tokens, but the "
            f"request needs {prompt + output}: {prompt} in the prompt and {output} for the output "
            "(max_tokens); shorten the prompt or lower max_tokens"
        )
    needed = blocks.blocks_for(prompt + max(output - 1, 0))  # the last token is never written
    if needed > blocks.pool.num_blocks:
        raise AdmissionError(
            f"the request needs {needed} cache blocks of {blocks.block_size} tokens for {prompt} "
            f"prompt and {output} output tokens, but the engine has {blocks.pool.num_blocks} in "
            "total; shorten the request or give the cache more memory"
        )


def _check_sampling(sampling: SamplingParams) -> None:
    allowed = (
        ("temperature", 0.0 <= sampling.temperature < math.inf, "a finite number from 0"),
        ("top_p", 0.0 < sampling.top_p <= 1.0, "above 0 and at most 1"),
        ("min_p", 0.0 <= sampling.min_p <= 1.0, "from 0 to 1"),
        ("top_k", sampling.top_k >= -1, "-1 or 0 (off), or at least 1"),
        ("max_tokens", sampling.max_tokens >= 0, "at least 0"),
        ("logprobs", (sampling.logprobs or 0) >= 0, "at least 0"),
        ("prompt_logprobs", (sampling.prompt_logprobs or 0) >= 0, "at least 0"),
        ("min_tokens", 0 <= sampling.min_tokens <= sampling.max_tokens, "from 0 to max_tokens"),
        ("presence_penalty", -2 <= sampling.presence_penalty <= 2, "from -2 to 2"),
        ("frequency_penalty", -2 <= sampling.frequency_penalty <= 2, "from -2 to 2"),
        ("repetition_penalty", 0 < sampling.repetition_penalty <= 10, "above 0 and at most 10"),
    )
    for name, holds, bounds in allowed:
        if not holds:
            raise AdmissionError(f"{name} is {getattr(sampling, name)}; it must be {bounds}")
