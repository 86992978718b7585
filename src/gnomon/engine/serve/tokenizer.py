"""Text to token ids and token ids to bytes, for byte-level BPE tokenizers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from gnomon.engine.errors import CheckpointError


class Tokenizer:
    """A checkpoint's tokenizer.

    Two encoders are kept: one that knows the added tokens (markers), and one that does not, for
    text in which a marker is only its spelling.

    Attributes:
        markers: spelling of every added token, special or not.
        special_ids: ids of the added tokens that are special.
        size: ids below it exist.
    """

    def __init__(self, source: str) -> None:
        """Build from the text of a tokenizer.json.

        Raises:
            CheckpointError: it is no byte-level BPE tokenizer, or a marker cannot be spelled out.
        """
        document = json.loads(source)
        if (document.get("decoder") or {}).get("type") != "ByteLevel":
            raise CheckpointError(
                "tokenizer.json has no ByteLevel decoder; only byte-level BPE tokenizers are served"
            )
        added = document.get("added_tokens") or []
        self.markers: tuple[str, ...] = tuple(token["content"] for token in added)
        self.special_ids = frozenset(token["id"] for token in added if token["special"])
        self._marked = tokenizers.Tokenizer.from_str(source)
        self._plain = tokenizers.Tokenizer.from_str(json.dumps({**document, "added_tokens": []}))
        added_ids = {token["id"] for token in added}
        for marker in self.markers:
            if not added_ids.isdisjoint(self.encode_plain(marker)):
                raise CheckpointError(
                    f"tokenizer.json merges plain text into the marker {marker!r}; user text "
                    "could not be told from markers"
                )
        self._bytes = self._byte_table({t["id"]: t["content"] for t in added})
        self.size = len(self._bytes)
        shrinks = document.get("normalizer") or any(t["lstrip"] or t["rstrip"] for t in added)
        self._longest = None if shrinks else max(map(len, self._bytes), default=1)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read a checkpoint's tokenizer.json.

        Raises:
            CheckpointError: the file is missing or unusable.
        """
        path = folder / "tokenizer.json"
        try:
            return cls(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Ids of text in which markers count."""
        return _ids(self._marked, text)

    def encode_plain(self, text: str) -> list[int]:
        """Ids of text in which markers are ordinary characters."""
        return _ids(self._plain, text)

    def id_of(self, marker: str) -> int | None:
        """Id of an added token; None if there is none of that spelling."""
        found = self._marked.token_to_id(marker)
        return int(found) if found is not None else None

    def bytes_of(self, token_id: int) -> bytes:
        """UTF-8 bytes of a token, which need not be whole characters; none for an unused id."""
        return self._bytes[token_id] if 0 <= token_id < self.size else b""

    def least_tokens(self, characters: int) -> int:
        """Fewest tokens a text of that length can have; far fewer than it really has.

        None can be promised (0) where a normaliser or a marker swallows characters.
        """
        return 0 if self._longest is None else -(-characters // self._longest)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of whole ids; what is not UTF-8 is left out."""
        return b"".join(map(self.bytes_of, token_ids)).decode("utf-8", errors="ignore")

    def _byte_table(self, added: dict[int, str]) -> list[bytes]:
        vocabulary: dict[str, int] = self._marked.get_vocab(with_added_tokens=True)
        table = [b""] * (max(vocabulary.values(), default=-1) + 1)
        byte_of = _byte_alphabet()
        for token, token_id in vocabulary.items():
            if token_id not in added and all(char in byte_of for char in token):
                table[token_id] = bytes(byte_of[char] for char in token)
            else:
                table[token_id] = added.get(token_id, token).encode()
        return table


def _ids(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    # Not `encode`: it holds the GIL, so a prompt of a million tokens would stop every stream for
    # seconds, in whatever thread it is encoded. The batch call releases it.
    return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-in of every byte in byte-level BPE vocabularies (the GPT-2 rule)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_in = iter(range(0x100, 0x200))
    return {chr(b if b in printable else next(stand_in)): b for b in range(0x100)}
