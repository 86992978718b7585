"""Token ids to text as they come, whole characters only."""

from __future__ import annotations

import codecs
from collections.abc import Set

from gnomon.engine.serve.tokenizer import Tokenizer


class Detokenizer:
    """Incremental: a character is given out with its last byte, never as a replacement mark.

    Bytes that are not UTF-8, and a character the reply ends inside of, are left out.

    Args:
        tokenizer: whose ids are fed.
        hidden: ids that give no text, such as the end of a message.
    """

    def __init__(self, tokenizer: Tokenizer, hidden: Set[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def feed(self, token_id: int) -> str:
        """Text that this token completes."""
        if token_id in self._hidden:
            return ""
        return self._decoder.decode(self._tokenizer.bytes_of(token_id))
