"""Requests that no client should make: odd methods, paths and queries, bytes that are no HTTP."""

from __future__ import annotations

import random
from collections.abc import Sequence
from urllib.parse import quote

from benchmarks.bodies import body, broken

_METHODS = ("GET", "GET", "GET", "POST", "POST", "DELETE", "HEAD", "PUT", "PATCH", "OPTIONS")
_PATHS = (
    "/v1/responses/{}", "/v1/responses/{}", "/v1/responses/{}/input_items",
    "/v1/responses/{}/input_items", "/v1/responses/{}/cancel", "/v1/models/{}", "/v1/{}", "/{}",
    "/v1/responses/{}/", "/v1/responses/{}/items", "//v1/responses/{}",
)  # fmt: skip
_NAMES = (
    "resp_", "resp_0", "", ".", "..", "%00", "a/b", "😀", "nano", "x" * 3000, "%2e%2e%2f", "?", "#",
    "input_items", "cancel", "{name}", "' or 1=1", "\u2028", "models", "-1", "__class__",
)  # fmt: skip
_QUERY = (
    "stream", "starting_after", "include", "include[]", "limit", "order", "after", "before", "x",
    "", "include_obfuscation",
)  # fmt: skip
_VALUES = (
    "true", "false", "1", "0", "-1", "100", "101", "99999999999999999999", "asc", "desc", "", "x",
    "null", "1.5", "reasoning.encrypted_content", "😀", "%00", "a&b=c", "item_0", "\u0661",
)  # fmt: skip
_LINES = (
    b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /v1/models HTTP/1.0\r\n\r\n",
    b"HEAD /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET http://x/health HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
    b"content-type: application/json\r\n\r\n10\r\n{\"prompt\": \"hi\"}\r\n0\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n{}",
    b"GET /health HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
)  # fmt: skip


def target(rng: random.Random, known: Sequence[str]) -> tuple[str, str]:
    """A method, and a path with a query.

    Args:
        rng: decides.
        known: ids of responses that exist, or did.
    """
    name = rng.choice(known) if known and rng.random() < 0.6 else quote(rng.choice(_NAMES))
    path = rng.choice(_PATHS).format(name)
    pairs = [
        f"{quote(rng.choice(_QUERY), safe='[]')}={quote(rng.choice(_VALUES), safe='')}"
        for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))
    ]
    return rng.choice(_METHODS), path + ("?" + "&".join(pairs) if pairs else "")


def garbage(rng: random.Random) -> bytes:
    """Bytes for a connection: HTTP with something broken, requests in a row, or noise."""
    kind = rng.random()
    if kind < 0.15:
        return rng.randbytes(rng.choice((1, 10, 1000, 100_000)))
    text = rng.choice(_LINES)
    if kind < 0.4:
        content = body("/tokenize", rng)
        text = (
            b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(content)
        ) + content
    if kind < 0.5:
        text *= rng.choice((2, 3, 20))
    elif kind < 0.6:
        at = text.find(b"\r\n") + 2
        text = text[:at] + b"x: " + b"y" * rng.choice((10, 60_000, 80_000)) + b"\r\n" + text[at:]
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        text = broken(text, rng)
    return text
