"""Rows grouped by the request they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gnomon.engine.attention.rows import RowBatch


@dataclass(frozen=True)
class RowGroup:
    """Requests that have the same number of rows in this step.

    One prefill chunk is usually a group of its own; all decode rows of a step are one group.

    Attributes:
        requests: int64 [n].
        rows: int64 [n, T], rows of each request in ascending order.
    """

    requests: torch.Tensor
    rows: torch.Tensor


def live_rows(rows: RowBatch) -> torch.Tensor:
    """Rows that are not padding, ascending: int64 [L]."""
    return ((rows.request_of_row >= 0) & (rows.positions >= 0)).nonzero().squeeze(-1)


def group_rows(rows: RowBatch) -> Iterator[RowGroup]:
    """Group the rows that are not padding."""
    live = live_rows(rows)
    request_of_live = rows.request_of_row[live]
    order = live[torch.argsort(request_of_live, stable=True)]
    counts = torch.bincount(request_of_live, minlength=rows.page_table.shape[0])
    starts = counts.cumsum(0) - counts
    for size in torch.unique(counts).tolist():
        if size == 0:
            continue
        requests = (counts == size).nonzero().squeeze(-1)
        members = starts[requests].unsqueeze(1) + torch.arange(size, device=live.device)
        yield RowGroup(requests, order[members])
