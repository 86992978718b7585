"""What the kernels are compared with, in the same run."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _row_and_head_kernel(
    q_ptr, pages_ptr, table_ptr, scores_ptr, rows_per_request, pages_of_request, width,
    HEADS: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    d = tl.arange(0, 128)[None, :]
    t = tl.arange(0, 128)[:, None]
    q = tl.load(q_ptr + (row * HEADS + head) * 128 + d).to(tl.float32)
    request = row // rows_per_request
    for i in range(SPLIT):
        block = tl.program_id(2) * SPLIT + i
        if block < pages_of_request:
            page = tl.load(table_ptr + request * width + block)
            k = tl.load(pages_ptr + page * 16384 + t * 128 + d).to(tl.float32)
            score = tl.max(tl.sum(k * q, 1))
            tl.store(scores_ptr + (row * HEADS + head) * pages_of_request + block, score)


def row_and_head_select(
    q: torch.Tensor, pages: torch.Tensor, table: torch.Tensor, per_request: int, count: int
) -> torch.Tensor:
    """A stand-in for public decode scorers: a program a row and head, on the CUDA cores.

    Every page is read once for each row and head; all scores are stored, then sorted out by
    ``torch.topk``.

    Args:
        q: [R, H, 128].
        pages: bf16 or e4m3 [blocks, 128, 128].
        table: int64 [N, width].
        per_request: rows of each request.
        count: history pages of each request.
    """
    rows, heads = q.shape[:2]
    scores = torch.empty((rows, heads, count), device=q.device)
    split = 8
    _row_and_head_kernel[(rows, heads, triton.cdiv(count, split))](
        q, pages, table, scores, per_request, count, table.shape[1], HEADS=heads, SPLIT=split
    )
    return scores.topk(15, dim=-1).indices


def cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """CuDNN's dense attention: q [N, Hq, R, D] over k and v [N, Hk, C, D]."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
