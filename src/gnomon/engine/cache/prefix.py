"""Finding blocks by the tokens they and all blocks before them hold."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash


@dataclass(frozen=True, eq=False)
class PrefixEntry:
    """One published block: the content of ``block`` is ``tokens`` after all of ``parent``'s.

    Attributes:
        key: xxh3 over the parent's key and the token ids.
        parent: entry of the block before it; None for a first block.
        tokens: the block's token ids as little-endian int64 bytes, compared on every hit.
        block: the block that holds their K, V and index keys.
        digest: SHA-256 name of the content, chained like ``key``; empty unless the index makes
            digests.
    """

    key: int
    parent: PrefixEntry | None
    tokens: bytes
    block: int
    digest: bytes = b""


def pack(tokens: Sequence[int]) -> bytes:
    """Token ids as int64 bytes, the form in which they are hashed and compared."""
    return array("q", tokens).tobytes()


class PrefixIndex:
    """A hash chain over full blocks, salted by what the bytes in a block depend on.

    A hit is exact and not a matter of hash quality: the token ids are compared, and so is the
    identity of the parent entry, which was itself found that way. A colliding key is therefore a
    miss, and a block whose key is taken by other content is not published.

    Args:
        salt: identity of the model and of the cache layouts; two engines share keys only if their
            salts agree.
        digests: give entries digests, by which content is known outside this index.
    """

    def __init__(self, salt: str, *, digests: bool = False) -> None:
        self._root = xxhash.xxh3_64_intdigest(salt.encode())
        self._digests = digests
        self._digest_root = hashlib.sha256(salt.encode()).digest()
        self._entries: dict[int, PrefixEntry] = {}
        self._by_block: dict[int, PrefixEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, parent: PrefixEntry | None, tokens: bytes) -> PrefixEntry | None:
        """The published block that continues ``parent`` with exactly these tokens."""
        entry = self._entries.get(self._key(parent, tokens))
        if entry is None or entry.parent is not parent or entry.tokens != tokens:
            return None
        return entry

    def publish(self, parent: PrefixEntry | None, tokens: bytes, block: int) -> PrefixEntry | None:
        """Make a fully written block findable.

        Returns:
            The entry that now stands for this content: a new one, or the one published before
            with the same content in another block. None if other content has the key.
        """
        key = self._key(parent, tokens)
        if key in self._entries:
            return self.find(parent, tokens)
        before = None if parent is None else parent.digest
        digest = self.digest(before, tokens) if self._digests else b""
        entry = PrefixEntry(key=key, parent=parent, tokens=tokens, block=block, digest=digest)
        self._entries[key] = entry
        self._by_block[block] = entry
        return entry

    def digest(self, before: bytes | None, tokens: bytes) -> bytes:
        """Name of a block's content: SHA-256 over the name of what is before it and its tokens."""
        return hashlib.sha256((before or self._digest_root) + tokens).digest()

    def forget(self, block: int) -> PrefixEntry:
        """Remove a block whose content is about to be overwritten; returns what it was."""
        entry = self._by_block.pop(block)
        del self._entries[entry.key]
        return entry

    def holds(self, block: int) -> bool:
        """Whether the block is published."""
        return block in self._by_block

    def _key(self, parent: PrefixEntry | None, tokens: bytes) -> int:
        before = self._root if parent is None else parent.key
        return int(xxhash.xxh3_64_intdigest(before.to_bytes(8, "little") + tokens))
