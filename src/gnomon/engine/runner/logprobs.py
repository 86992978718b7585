"""Log probabilities of tokens under the model's own distribution.

They are of the logits as the model gives them: before temperature, penalties, biases, grammars and
every other cut. So they say what the model thinks, not how the token was drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from gnomon.engine.errors import NumericsError
from gnomon.engine.runner.rank import largest
from gnomon.engine.runner.scored import Logprobs
from gnomon.engine.scheduler.step import Chunk

_TILE_ELEMENTS = 1 << 25  # fp32 logits alive at once while a prompt is scored (128 MiB)


def score(logits: torch.Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[Logprobs]:
    """Log probabilities of one token a row, and of the most probable ones.

    Args:
        logits: fp32 [S, V], unchanged.
        tokens: S of them.
        tops: for each row, how many of the most probable tokens to tell.

    Raises:
        NumericsError: a row has a NaN, or no finite logit.
    """
    total = logits.logsumexp(dim=-1, keepdim=True)
    if not bool(torch.isfinite(total).all()):
        raise NumericsError("the model produced logits that are not finite for a prompt")
    chosen = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])
    ranks = (logits > chosen).sum(dim=-1).add_(1).tolist()
    logprobs = (chosen - total)[:, 0].tolist()
    count = min(max(tops), logits.shape[1])
    top_ids: list[list[int]] = [[] for _ in tokens]
    top: list[list[float]] = [[] for _ in tokens]
    if count:
        values, ids = largest(logits, count)
        top_ids, top = ids.tolist(), (values - total).tolist()
    return [
        Logprobs(logprobs[at], ranks[at], tuple(top_ids[at][:wanted]), tuple(top[at][:wanted]))
        for at, wanted in enumerate(tops)
    ]


def prompt_rows(chunk: Chunk) -> range:
    """Positions of a chunk whose logits score a prompt token: the one behind each."""
    request = chunk.request
    if not request.scores_prompt:
        return range(0)
    return range(chunk.start, min(chunk.stop, len(request.prompt_ids) - 1))


def tiles(count: int, vocab_size: int) -> Iterator[slice]:
    """Cut ``count`` rows so that the logits of one part have a bounded size."""
    most = min(max(_TILE_ELEMENTS // vocab_size, 1), 128)
    for start in range(0, count, most):
        yield slice(start, min(start + most, count))
