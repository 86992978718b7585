"""Log probabilities as the APIs spell them.

A number that JSON cannot hold, minus infinity, is told as -9999.0, as vLLM does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gnomon.engine.runner.scored import Logprobs
from gnomon.engine.serve.accounts import Token
from gnomon.engine.serve.tokenizer import Tokenizer

LOWEST = -9999.0

Json = dict[str, Any]


@dataclass(frozen=True)
class ScoreWriter:
    """Writes scores of one request.

    Attributes:
        as_ids: spell every token ``token_id:5``.
    """

    tokenizer: Tokenizer
    as_ids: bool = False

    def name(self, token_id: int) -> str:
        """A token as text; where it is no whole characters, its bytes spelled out."""
        if self.as_ids:
            return f"token_id:{token_id}"
        raw = self.tokenizer.bytes_of(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def entry(self, token_id: int, logprob: float) -> Json:
        """One token of chat's and Responses' lists."""
        return {
            "token": self.name(token_id),
            "logprob": max(logprob, LOWEST),
            "bytes": list(self.tokenizer.bytes_of(token_id)),
        }

    def content(self, tokens: Sequence[Token]) -> list[Json]:
        """``logprobs.content`` of chat, and ``logprobs`` of Responses."""
        return [
            {
                **self.entry(token.id, token.scores.logprob),
                "top_logprobs": [
                    self.entry(*pair)
                    for pair in zip(token.scores.top_ids, token.scores.top, strict=True)
                ],
            }
            for token in tokens
            if token.scores is not None
        ]

    def prompt(self, ids: Sequence[int], scores: Sequence[Logprobs]) -> list[Json | None]:
        """``prompt_logprobs`` as vLLM spells them: by token id; null for the first token."""
        return [None, *(self._by_id(*pair) for pair in zip(ids[1:], scores, strict=True))]

    def _by_id(self, token_id: int, scores: Logprobs) -> Json:
        found = {
            str(one): {
                "logprob": max(logprob, LOWEST),
                "rank": at,
                "decoded_token": self.name(one),
            }
            for at, (one, logprob) in enumerate(
                zip(scores.top_ids, scores.top, strict=True), start=1
            )
        }
        mine = {
            "logprob": max(scores.logprob, LOWEST),
            "rank": scores.rank,
            "decoded_token": self.name(token_id),
        }
        return {str(token_id): mine, **found}


@dataclass
class LegacyScores:
    """The ``logprobs`` object of text completions, for one choice or one packet of it.

    Tokens that share a spelling share their member of ``top_logprobs``: the likelier one's number.
    """

    writer: ScoreWriter
    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def add(self, token_id: int, offset: int, scores: Logprobs | None) -> None:
        """Add a token; the first one of a prompt has no scores."""
        self.tokens.append(self.writer.name(token_id))
        self.text_offset.append(offset)
        if scores is None:
            self.token_logprobs.append(None)
            self.top_logprobs.append(None)
            return
        self.token_logprobs.append(max(scores.logprob, LOWEST))
        top: dict[str, float] = {}
        for one, logprob in zip(scores.top_ids, scores.top, strict=True):
            top.setdefault(self.writer.name(one), max(logprob, LOWEST))
        top.setdefault(self.writer.name(token_id), max(scores.logprob, LOWEST))
        self.top_logprobs.append(top)

    def json(self) -> Json:
        """As JSON."""
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }
