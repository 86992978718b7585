"""What a request adds to its logits before tokens are chosen: biases, penalties, a least length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import torch

from gnomon.engine.scheduler.request import Request, SamplingParams


def adjust(logits: torch.Tensor, requests: Sequence[Request], eos_ids: Collection[int]) -> None:
    """Change the rows of requests that ask for it, in place; no row sees another's.

    Repetition penalty first (over prompt and output, as in the CTRL paper, arXiv 1909.05858), then
    presence and frequency penalties (over the output, as in OpenAI's API), then biases. Until
    ``min_tokens`` tokens are out, end-of-sequence and stop tokens are -inf.

    Args:
        logits: fp32 [S, V].
        requests: S of them, in row order.
        eos_ids: the model's end-of-sequence tokens.
    """
    for row, request in zip(logits, requests, strict=True):
        sampling = request.sampling
        if sampling.is_plain:
            continue
        _penalise(row, request, sampling)
        if sampling.logit_bias:
            ids = [token_id for token_id, _ in sampling.logit_bias]
            row[ids] += row.new_tensor([bias for _, bias in sampling.logit_bias])
        if len(request.output_ids) < sampling.min_tokens:
            row[[*eos_ids, *sampling.stop_token_ids]] = -torch.inf


def _penalise(row: torch.Tensor, request: Request, sampling: SamplingParams) -> None:
    if sampling.repetition_penalty != 1.0:
        seen = sorted({*request.prompt_ids, *request.output_ids})
        value = row[seen]
        factor = sampling.repetition_penalty
        row[seen] = torch.where(value > 0, value / factor, value * factor)
    if request.output_ids and (sampling.presence_penalty or sampling.frequency_penalty):
        counts = Counter(request.output_ids)
        ids = sorted(counts)
        times = row.new_tensor([counts[token_id] for token_id in ids])
        row[ids] -= sampling.presence_penalty + sampling.frequency_penalty * times
