"""One choice of a text completion as it is told: whole, or packet by packet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnomon.engine.runner.scored import Logprobs
from gnomon.engine.serve.accounts import Token
from gnomon.engine.serve.detokenizer import Detokenizer
from gnomon.engine.serve.protocol.completions import CompletionRequest
from gnomon.engine.serve.reply import Reply
from gnomon.engine.serve.scores import LegacyScores, ScoreWriter
from gnomon.engine.serve.tokenizer import Tokenizer

Json = dict[str, Any]


@dataclass(frozen=True)
class EchoedPrompt:
    """A prompt that its answer begins with.

    Attributes:
        text: as it was given; of token ids, with markers as they are spelled.
        offsets: characters before each token.
    """

    text: str
    offsets: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer, ids: Sequence[int], given: str | None) -> EchoedPrompt:
        """The echo of a prompt; ``given`` is its text, if it was one."""
        detokenizer = Detokenizer(tokenizer, frozenset())
        parts: list[str] = []
        offsets, length = [], 0
        for token_id in ids:
            offsets.append(length)
            parts.append(detokenizer.feed(token_id))
            length += len(parts[-1])
        return cls("".join(parts) if given is None else given, tuple(offsets))


@dataclass(frozen=True)
class CompletionChoice:
    """What is told of one choice.

    Attributes:
        index: of the choice.
        prompt_ids: that it continues.
        echo: what its text begins with; None for nothing.
        body: the request.
        writer: of its scores.
    """

    index: int
    prompt_ids: Sequence[int]
    echo: EchoedPrompt | None
    body: CompletionRequest
    writer: ScoreWriter

    def whole(self, reply: Reply, prompt: Sequence[Logprobs]) -> Json:
        """The choice of a whole answer; ``prompt`` are the scores of its prompt, if asked for."""
        text = reply.content if self.echo is None else self.echo.text + reply.content
        told = self._choice(text, reply.finish_reason)
        if self.body.logprobs is not None:
            scores = self._prompt_scores(prompt)
            self._add(scores, reply.tokens)
            told["logprobs"] = scores.json()
        if self.body.return_token_ids:
            told["token_ids"] = [token.id for token in reply.tokens]
        return told | self._prompt(prompt)

    def head(self, prompt: Sequence[Logprobs]) -> Json | None:
        """The packet before any token, if there is anything to tell."""
        told = self._choice("" if self.echo is None else self.echo.text)
        more = self._prompt(prompt)
        if self.echo is None and not more:
            return None
        if self.echo is not None and self.body.logprobs is not None:
            told["logprobs"] = self._prompt_scores(prompt).json()
        return told | more

    def part(self, text: str, tokens: Sequence[Token], finish_reason: str | None = None) -> Json:
        """A packet with text and the tokens that made it."""
        told = self._choice(text, finish_reason)
        if self.body.logprobs is not None and tokens:
            scores = LegacyScores(self.writer)
            self._add(scores, tokens)
            told["logprobs"] = scores.json()
        if self.body.return_token_ids:
            told["token_ids"] = [token.id for token in tokens]
        return told

    def _choice(self, text: str, finish_reason: str | None = None) -> Json:
        return {
            "index": self.index,
            "text": text,
            "finish_reason": finish_reason,
            "logprobs": None,
        }

    def _add(self, scores: LegacyScores, tokens: Sequence[Token]) -> None:
        before = 0 if self.echo is None else len(self.echo.text)
        for token in tokens:
            scores.add(token.id, before + token.offset, token.scores)

    def _prompt_scores(self, prompt: Sequence[Logprobs]) -> LegacyScores:
        """Scores of the echoed prompt; none if it is not echoed."""
        scores = LegacyScores(self.writer)
        if self.echo is not None:
            for at, token_id in enumerate(self.prompt_ids):
                scored = self._cut(prompt[at - 1]) if at else None
                scores.add(token_id, self.echo.offsets[at], scored)
        return scores

    def _cut(self, scores: Logprobs) -> Logprobs:
        """As many probable tokens as ``logprobs`` asks for; ``prompt_logprobs`` may want more."""
        count = self.body.logprobs or 0
        return Logprobs(scores.logprob, scores.rank, scores.top_ids[:count], scores.top[:count])

    def _prompt(self, prompt: Sequence[Logprobs]) -> Json:
        """What is told of the prompt beside the text."""
        told: Json = {}
        if self.body.prompt_logprobs is not None:
            told["prompt_logprobs"] = self.writer.prompt(self.prompt_ids, prompt)
        if self.body.return_token_ids:
            told["prompt_token_ids"] = list(self.prompt_ids)
        return told
