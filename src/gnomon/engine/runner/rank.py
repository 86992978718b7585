"""The largest logits of a row, in one order: value descending, then id ascending."""

from __future__ import annotations

import numpy as np
import torch


def largest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a stable descending sort of each row begins with, without sorting the whole row.

    Args:
        logits: [S, V], no NaN.
        count: how many of a row; at most V.

    Returns:
        Values [S, count] and ids int64 [S, count]. Which of several -inf come is not said.
    """
    vocab_size = logits.shape[1]
    if count == vocab_size:
        return _sorted(logits)
    values, ids = logits.topk(count + 1, dim=-1)
    # topk leaves open which of equal values it takes, and their order.
    ids, by_id = ids.sort(dim=-1)
    values, by_value = values.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, by_value)
    cut = (values[:, count - 1] == values[:, count]) & (values[:, count] > -torch.inf)
    values, ids = values[:, :count], ids[:, :count]
    for row in cut.nonzero()[:, 0].tolist():  # equal values on both sides of the cut
        whole_values, whole_ids = _sorted(logits[row : row + 1])
        values[row], ids[row] = whole_values[0, :count], whole_ids[0, :count]
    return values, ids


def _sorted(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A stable descending sort. On a CPU as one array of 64-bit keys, which is 5 times faster."""
    if logits.device.type != "cpu":
        return torch.sort(logits, dim=-1, descending=True, stable=True)
    bits = (logits + 0.0).view(torch.int32)  # -0 counts as +0
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ids = torch.arange(logits.shape[1])
    keys = ((~ascending).long() << 32) | ids
    order = torch.from_numpy(np.sort(keys.numpy(), axis=-1)) & 0xFFFFFFFF
    return logits.gather(1, order), order
