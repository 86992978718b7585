"""Ed25519 signatures of manifests: who vouches for a run, beside what it contains.

Keys are files of other tools: PEM (``openssl genpkey -algorithm ed25519``) or OpenSSH
(``ssh-keygen -t ed25519``). A signature covers the bytes of ``manifest.json``, hence every file.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from gnomon.harness.errors import StoreError

_LINE = re.compile(rb"ed25519 ([A-Za-z0-9+/=]{44}) ([A-Za-z0-9+/=]{88})\n")


class SignatureError(StoreError):
    """A signature does not hold, or a key cannot be used."""


@dataclass(frozen=True)
class Signature:
    """One line of a file: ``ed25519``, public key and signature, both in base64.

    Attributes:
        signer: public key, 32 bytes.
        value: 64 bytes.
    """

    signer: bytes
    value: bytes

    @classmethod
    def make(cls, key: Ed25519PrivateKey, content: bytes) -> Signature:
        """Sign some bytes."""
        return cls(key.public_key().public_bytes_raw(), key.sign(content))

    @classmethod
    def read(cls, path: Path) -> Signature:
        """A signature from its file.

        Raises:
            SignatureError: it is not what `line` gives for any signature.
        """
        content = path.read_bytes()
        match = _LINE.fullmatch(content)
        try:
            found = cls(*(base64.b64decode(part, validate=True) for part in match.groups()))  # type: ignore[union-attr]
        except (AttributeError, ValueError):
            raise SignatureError("not a signature") from None
        if found.line() != content:  # base64 has several spellings of one value
            raise SignatureError("not a signature in the form it was written")
        return found

    def line(self) -> bytes:
        """The content of a signature's file."""
        return b"ed25519 %b %b\n" % (
            base64.b64encode(self.signer),
            base64.b64encode(self.value),
        )

    def check(self, content: bytes) -> None:
        """Prove that the signer signed these bytes.

        Raises:
            SignatureError: it did not.
        """
        try:
            Ed25519PublicKey.from_public_bytes(self.signer).verify(self.value, content)
        except (InvalidSignature, ValueError):
            raise SignatureError(
                "the signature does not fit the manifest and the key it names"
            ) from None


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """A signing key.

    Raises:
        SignatureError: the file holds none, another kind, or one behind a passphrase.
    """
    content = _read(path)
    load = load_ssh_private_key if b"OPENSSH" in content[:64] else load_pem_private_key
    try:
        key = load(content, None)
    except TypeError:
        raise SignatureError(
            f"{path} is protected by a passphrase; give a key without one, from a place that only "
            "you can read."
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise SignatureError(f"{path} holds no private key in PEM or OpenSSH form.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SignatureError(f"{path} is no Ed25519 key; make one with `ssh-keygen -t ed25519`.")
    return key


def read_public_key(path: Path) -> bytes:
    """A public key as 32 bytes.

    Raises:
        SignatureError: the file holds none, or another kind.
    """
    content = _read(path)
    load = load_ssh_public_key if content.startswith(b"ssh-") else load_pem_public_key
    try:
        key = load(content)
    except (ValueError, UnsupportedAlgorithm):
        raise SignatureError(
            f"{path} holds no public key in PEM or OpenSSH form; give the public half of the pair."
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise SignatureError(f"{path} is no Ed25519 key.")
    return key.public_bytes_raw()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SignatureError(f"{path} cannot be read: {error.strerror}.") from None
