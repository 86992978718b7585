"""A synthetic vocabulary of any size, for what depends on the number of tokens alone."""

from __future__ import annotations

import random
import string

from gnomon.engine.grammar.vocabulary import WRITTEN_MARKERS


def synthetic_tokens(size: int) -> list[bytes]:
    """Bytes of ``size`` distinct tokens: all single bytes, words, numbers, punctuation, scripts.

    The shares and lengths resemble those of large byte-level vocabularies. The last token has no
    bytes: it may serve as the end of a reply.
    """
    rng = random.Random(0)
    markers = sorted(marker.encode() for marker in WRITTEN_MARKERS)
    found = dict.fromkeys(bytes([value]) for value in range(256))
    while len(found) < size - len(markers) - 1:
        found[_token(rng)] = None
    return [*found, *markers, b""]


def _token(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.7:
        length = min(14, 2 + int(rng.expovariate(0.2)))
        word = "".join(rng.choice(string.ascii_lowercase) for _ in range(length))
        word = word.capitalize() if rng.random() < 0.2 else word
        return (" " * (rng.random() < 0.5) + word).encode()
    if kind < 0.78:
        digits = "".join(rng.choice(string.digits) for _ in range(rng.randint(1, 3)))
        return (digits + rng.choice(["", *string.punctuation])).encode()
    if kind < 0.9:
        first = rng.choice((0x4E00, 0x400, 0xE0, 0x3040, 0xAC00))
        return "".join(chr(first + rng.randrange(64)) for _ in range(rng.randint(2, 5))).encode()
    marks = string.punctuation + " \n\t"
    return "".join(rng.choice(marks) for _ in range(rng.randint(2, 6))).encode()
