"""Random walks through a grammar: what a model with random weights could write."""

from __future__ import annotations

import functools
import random
from typing import Any

import xgrammar

from gnomon.engine.grammar.vocabulary import WRITTEN_MARKERS, token_bytes
from gnomon.engine.models.loader import resolve_model
from gnomon.engine.serve.tokenizer import Tokenizer


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.load(resolve_model("nano"))


@functools.cache
def compiler() -> Any:
    table = token_bytes(resolve_model("nano"), tokenizer().size, WRITTEN_MARKERS)
    end = tokenizer().id_of("[e~[")
    info = xgrammar.TokenizerInfo(table, xgrammar.VocabType.RAW, stop_token_ids=[end])
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def walk(source: str, seed: int, most: int = 3000) -> str:
    """Text of a reply whose every token is drawn evenly from what the grammar allows."""
    rng = random.Random(seed)
    matcher = xgrammar.GrammarMatcher(compiler().compile_grammar(source))
    bitmask = xgrammar.allocate_token_bitmask(1, tokenizer().size)
    ids: list[int] = []
    while len(ids) < most:
        matcher.fill_next_token_bitmask(bitmask, 0)
        words = bitmask[0].tolist()
        allowed = [i for i in range(tokenizer().size) if words[i // 32] >> i % 32 & 1]
        assert allowed, tokenizer().decode(ids)
        token = rng.choice(allowed)
        assert matcher.accept_token(token)
        if matcher.is_terminated():
            return tokenizer().decode(ids)
        ids.append(token)
    raise AssertionError(f"the walk did not end: {tokenizer().decode(ids)[:500]!r}")
