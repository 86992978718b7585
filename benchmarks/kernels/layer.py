"""The attention of the transformers MiniMax-M3 layer, and ours, on the same hidden states."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from benchmarks.kernels.measured import GROUP, Measured
from benchmarks.kernels.pages import DIM, build
from benchmarks.kernels.project import weights
from benchmarks.kernels.step import attention_step
from benchmarks.kernels.timing import seconds
from gnomon.engine.attention.heads import rotation
from gnomon.engine.attention.triton.backend import TritonBackend
from gnomon.engine.options import CacheFormat

PEER = "transformers M3 attention layer"
_HIDDEN, _HEADS = 6144, 4


class _Filled:
    """A cache that holds a context: it gives what a layer would find, and copies nothing."""

    def __init__(self, requests: int, context: int) -> None:
        self.k, self.v = (
            torch.randn(requests, _HEADS, context, DIM, device="cuda").bfloat16() for _ in range(2)
        )
        self.index = torch.randn(requests, 1, context, DIM, device="cuda").bfloat16()
        self.layers = [SimpleNamespace(update_index=lambda _: self.index)]

    def update(self, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        return self.k, self.v


def _peer() -> tuple[torch.nn.Module, torch.nn.Module]:
    """The attention of a sparse layer, as transformers makes it, and its rotary embedding."""
    from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLTextConfig
    from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import (
        MiniMaxM3VLAttention,
        MiniMaxM3VLRotaryEmbedding,
    )

    config = MiniMaxM3VLTextConfig(
        num_hidden_layers=1, layer_types=["minimax_m3_sparse"], hidden_size=_HIDDEN,
        num_attention_heads=_HEADS * GROUP, num_key_value_heads=_HEADS, head_dim=DIM,
        index_n_heads=_HEADS, index_head_dim=DIM, index_block_size=128, index_topk_blocks=16,
        index_local_blocks=1, attn_implementation="sdpa",
    )  # fmt: skip
    layer = MiniMaxM3VLAttention(config, 0).to("cuda", torch.bfloat16)
    return layer.eval(), MiniMaxM3VLRotaryEmbedding(config).to("cuda")


@torch.no_grad()
def layer(backend: TritonBackend) -> Iterator[Measured]:
    """Projections included on both sides; transformers masks all tokens for each head."""
    theirs, embedding = _peer()
    columns = _HEADS * (GROUP + 3) + 1
    into = torch.randn(columns * DIM, _HIDDEN, device="cuda").bfloat16() * _HIDDEN**-0.5
    out = torch.randn(_HIDDEN, _HEADS * GROUP * DIM, device="cuda").bfloat16() * 0.01
    norms = weights()
    for requests, context, rows in ((1, 131072, 1), (8, 131072, 1), (1, 32768, 512)):
        shape = f"{requests} x {context:,}, {_HEADS * GROUP} heads x {rows} rows, with projections"
        x = torch.randn(requests, rows, _HIDDEN, device="cuda").bfloat16()
        work = build(CacheFormat.MXFP4, requests, context, rows, _HEADS, kv=True, index=True)
        turn = rotation(work.rows.positions, 5e6, DIM // 2)

        def ours(work=work, x=x, turn=turn):  # type: ignore[no-untyped-def]
            made = F.linear(x.flatten(0, 1), into)
            return F.linear(attention_step(backend, work, made, norms, turn).flatten(1), out)

        nbytes = into.nbytes + out.nbytes + requests * context // 128 * 8704
        yield Measured("attention layer", shape, "mxfp4", seconds([ours], 7) * 1e6, nbytes)
        cache = _Filled(requests, context)
        position = work.rows.positions.view(requests, rows)
        call = partial(
            theirs, x, embedding(x, position), None, past_key_values=cache, position_ids=position
        )
        nbytes = into.nbytes + out.nbytes + cache.k.nbytes + cache.v.nbytes + cache.index.nbytes
        yield Measured(PEER, shape, "bf16", seconds([call], 3) * 1e6, nbytes, peer=True)
