"""Running one step: build the rows, run the model, choose the tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from gnomon.engine.attention.backend import AttentionBackend
from gnomon.engine.cache.manager import BlockTable
from gnomon.engine.cache.pools import PagePools
from gnomon.engine.models.minimax_m3 import MiniMaxM3
from gnomon.engine.runner.adjust import adjust
from gnomon.engine.runner.batch import build_input
from gnomon.engine.runner.constraints import Constraints
from gnomon.engine.runner.logprobs import prompt_rows, score, tiles
from gnomon.engine.runner.sampler import sample
from gnomon.engine.runner.scored import Logprobs
from gnomon.engine.scheduler.request import Request, SamplingParams
from gnomon.engine.scheduler.step import Chunk


@dataclass(frozen=True)
class StepResult:
    """What one step gave, by request id.

    Attributes:
        tokens: the token of every chunk that samples.
        logprobs: of those tokens, for requests that ask.
        prompt_logprobs: of the prompt tokens behind the chunk's, for requests that ask.
    """

    tokens: dict[str, int] = field(default_factory=dict)
    logprobs: dict[str, Logprobs] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[Logprobs]] = field(default_factory=dict)


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
    def run(self, chunks: Sequence[Chunk], constraints: Constraints | None = None) -> StepResult:
        """Compute the chunks' tokens and choose a token for every chunk that samples.

        Args:
            chunks: of distinct requests.
            constraints: what masks the logits of requests that have a grammar.

        Raises:
            NumericsError: logits are not finite.
        """
        batch = build_input(chunks, self.block_size, self.seed, self.device)
        output = self.model.forward(batch.token_ids, batch.rows, self.pools.layers, self.backend)
        result = StepResult(prompt_logprobs=self._score_prompts(chunks, output.hidden))
        if not batch.draws:
            return result
        logits = self.model.logits(output.hidden[batch.sample_rows])
        requests = [chunk.request for chunk in chunks if chunk.samples]
        scored = [i for i, r in enumerate(requests) if r.sampling.logprobs is not None]
        raw = logits[scored] if scored else logits  # a copy, of what the next lines change
        adjust(logits, requests, self.eos_token_ids)
        if constraints is not None:
            constraints.mask(logits, requests)
        tokens = sample(logits, batch.draws)
        result.tokens.update((r.id, token) for r, token in zip(requests, tokens, strict=True))
        if scored:
            wanted = [requests[i].sampling.logprobs or 0 for i in scored]
            found = score(raw, [tokens[i] for i in scored], wanted)
            result.logprobs.update((requests[i].id, f) for i, f in zip(scored, found, strict=True))
        return result

    def _score_prompts(
        self, chunks: Sequence[Chunk], hidden: torch.Tensor
    ) -> dict[str, list[Logprobs]]:
        """Log probabilities of the prompt tokens that the chunks' rows predict, hidden [R, h]."""
        found: dict[str, list[Logprobs]] = {}
        first = 0
        for chunk in chunks:
            positions = prompt_rows(chunk)
            rows = hidden[first : first + len(positions)]
            first += chunk.stop - chunk.start
            if not positions:
                continue
            request, scores = chunk.request, found.setdefault(chunk.request.id, [])
            targets = request.prompt_ids[positions.start + 1 : positions.stop + 1]
            top = request.sampling.prompt_logprobs or 0
            for tile in tiles(len(targets), self.model.config.vocab_size):
                part = targets[tile]
                scores += score(self.model.logits(rows[tile]), part, [top] * len(part))
        return found

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
        request.output_ids.append(first.tokens[request.id])
        self.run([Chunk(request, num_tokens, num_tokens + 1, samples=True)])

    def sanitised_values(self) -> int:
        """Non-finite cache inputs replaced since start, over all layers."""
        return self.pools.sanitised_total()
