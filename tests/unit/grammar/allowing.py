"""Whether a grammar allows a text."""

from __future__ import annotations

import xgrammar
from tests.structured.walk import compiler


def allows(source: str, text: str) -> bool:
    """Whether a grammar allows exactly this reply."""
    matcher = xgrammar.GrammarMatcher(compiler().compile_grammar(source))
    return bool(matcher.accept_string(text) and matcher.is_completed())
