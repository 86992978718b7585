"""Reasoning as an opaque value that clients carry for us, and bring back unchanged.

A client that stores nothing here (``store: false``) asks for ``reasoning.encrypted_content`` and
sends each reasoning item back with only that. What it carries is the reasoning under an HMAC: the
client may read it, as the answer has it in clear too, but cannot write one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

_FORM = "gnomon1"
_CONTEXT = b"gnomon reasoning 1\x00"


class NotOurs(Exception):
    """The value was not made with this key, or was changed."""


class Seal:
    """Makes and opens such values.

    Args:
        secret: servers with the same one open each other's; None draws one that ends with this
            process.
    """

    def __init__(self, secret: str | None = None) -> None:
        given = secrets.token_bytes(32) if secret is None else secret.encode()
        self._key = hashlib.sha256(_CONTEXT + given).digest()

    def close(self, text: str) -> str:
        """The opaque value of a text."""
        content = text.encode()
        return ".".join((_FORM, _encoded(content), _encoded(self._mac(content))))

    def open(self, value: str) -> str:
        """The text of an opaque value.

        Raises:
            NotOurs: it was not made with this key, or was changed.
        """
        form, _, rest = value.partition(".")
        body, _, mac = rest.partition(".")
        try:
            content, given = _decoded(body), _decoded(mac)
        except (ValueError, binascii.Error):
            raise NotOurs from None
        if form != _FORM or not hmac.compare_digest(given, self._mac(content)):
            raise NotOurs
        return content.decode()

    def _mac(self, content: bytes) -> bytes:
        return hmac.digest(self._key, content, hashlib.sha256)


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
