"""Running one step: build the rows, run the model, choose the tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from gnomon.engine.attention.backend import AttentionBackend
from gnomon.engine.cache.manager import BlockTable
from gnomon.engine.cache.pools import PagePools
from gnomon.engine.models.minimax_m3 import MiniMaxM3
from gnomon.engine.runner.adjust import adjust
from gnomon.engine.runner.batch import build_input
from gnomon.engine.runner.constraints import Constraints
from gnomon.engine.runner.sampler import sample
from gnomon.engine.scheduler.request import Request, SamplingParams
from gnomon.engine.scheduler.step import Chunk


class ModelRunner:
    """Owns the model and the pages of one process; knows nothing about queues.

    Args:
        model: the loaded model.
        pools: the pages of every layer.
        backend: the attention implementation.
        block_size: tokens a block.
        seed: the engine's seed, for requests that bring none.
        eos_token_ids: what ``min_tokens`` holds back.
    """

    def __init__(
        self,
        model: MiniMaxM3,
        pools: PagePools,
        backend: AttentionBackend,
        block_size: int,
        seed: int,
        eos_token_ids: Collection[int] = (),
    ) -> None:
        self.model = model
        self.pools = pools
        self.backend = backend
        self.block_size = block_size
        self.seed = seed
        self.eos_token_ids = eos_token_ids
        self.device = pools.layers[0].k.device

    @torch.inference_mode()
    def run(
        self, chunks: Sequence[Chunk], constraints: Constraints | None = None
    ) -> dict[str, int]:
        """Compute the chunks' tokens and choose a token for every chunk that samples.

        Args:
            chunks: of distinct requests.
            constraints: what masks the logits of requests that have a grammar.

        Returns:
            Request id to token.
        """
        batch = build_input(chunks, self.block_size, self.seed, self.device)
        output = self.model.forward(batch.token_ids, batch.rows, self.pools.layers, self.backend)
        if not batch.draws:
            return {}
        logits = self.model.logits(output.hidden[batch.sample_rows])
        requests = [chunk.request for chunk in chunks if chunk.samples]
        adjust(logits, requests, self.eos_token_ids)
        if constraints is not None:
            constraints.mask(logits, requests)
        tokens = sample(logits, batch.draws)
        return {draw.request_id: token for draw, token in zip(batch.draws, tokens, strict=True)}

    def warm_up(self, num_tokens: int) -> None:
        """Run a real prefill of ``num_tokens`` and a real decode on blocks nobody holds yet.

        The blocks keep what was written; nothing is published, so nothing will read it.

        Raises:
            NumericsError: the model's logits are not finite.
        """
        num_tokens = max(1, min(num_tokens, self.pools.num_blocks * self.block_size - 1))
        blocks = list(range(-(-(num_tokens + 1) // self.block_size)))
        request = Request(
            id="warm-up",
            prompt_ids=(0,) * num_tokens,
            sampling=SamplingParams(temperature=0.0, max_tokens=2),
            table=BlockTable(block_ids=blocks),
        )
        first = self.run([Chunk(request, 0, num_tokens, samples=True)])
        request.output_ids.append(first[request.id])
        self.run([Chunk(request, num_tokens, num_tokens + 1, samples=True)])

    def sanitised_values(self) -> int:
        """Non-finite cache inputs replaced since start, over all layers."""
        return self.pools.sanitised_total()
