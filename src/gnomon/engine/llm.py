"""The engine embedded in one process, for scripts and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnomon.engine.options import EngineOptions
from gnomon.engine.runner.core import EngineCore
from gnomon.engine.runner.messages import EngineFacts, TokenOutput
from gnomon.engine.runner.scored import Logprobs
from gnomon.engine.scheduler.request import FinishReason, SamplingParams


@dataclass(frozen=True)
class Completion:
    """What one prompt gave.

    Attributes:
        token_ids: tokens generated; the stop token, if one came, is the last.
        finish_reason: why generation ended.
        num_cached: prompt tokens found in the prefix cache.
        logprobs: of each token, if asked for.
        prompt_logprobs: of each prompt token from the second on, if asked for.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    num_cached: int
    logprobs: tuple[Logprobs, ...] = ()
    prompt_logprobs: tuple[Logprobs, ...] = ()


class LLM:
    """Generate from token ids without a server.

    Args:
        options: as for ``gnomon serve``.

    Raises:
        StartupRefused: the combination cannot run; carries every reason.
        CheckpointError: the checkpoint cannot be loaded.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.core = EngineCore.start(options)
        self._calls = 0

    @property
    def facts(self) -> EngineFacts:
        """What is really served."""
        return self.core.facts

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams],
        grammars: Sequence[str | None] | None = None,
    ) -> list[Completion]:
        """Generate for all prompts together.

        Args:
            prompts: token ids of each prompt.
            sampling: one for all, or one for each prompt.
            grammars: for each prompt the source of the grammar its output follows, or None.

        Returns:
            One completion a prompt, in the order of the prompts.

        Raises:
            AdmissionError: a prompt can never run; nothing is generated for any.
        """
        each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
        sources = [None] * len(prompts) if grammars is None else list(grammars)
        self._calls += 1
        ids = [f"{self._calls}-{i}" for i in range(len(prompts))]
        outputs: dict[str, list[TokenOutput]] = {request_id: [] for request_id in ids}
        finished: dict[str, Completion] = {}
        try:
            for request_id, prompt, params, source in zip(ids, prompts, each, sources, strict=True):
                self.core.add(request_id, tuple(prompt), params, source)
            while self.core.has_work or self.core.compiling:
                for _, error in self.core.start_compiled(wait=True):
                    raise error
                for output in self.core.step():
                    outputs[output.id].append(output)
                    if output.finish_reason is not None:
                        finished[output.id] = _completion(outputs[output.id], output.finish_reason)
        finally:  # a prompt was refused, or the caller interrupted: leave nothing behind
            for request_id in ids:
                self.core.abort(request_id)
        return [finished[request_id] for request_id in ids]


def _completion(outputs: Sequence[TokenOutput], reason: FinishReason) -> Completion:
    return Completion(
        token_ids=tuple(t for output in outputs for t in output.token_ids),
        finish_reason=reason,
        num_cached=outputs[0].num_cached,
        logprobs=tuple(scores for output in outputs for scores in output.logprobs),
        prompt_logprobs=outputs[0].prompt_logprobs,
    )
