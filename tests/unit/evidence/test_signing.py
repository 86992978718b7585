"""Signatures by keys of other tools."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from tests.unit.evidence.runs import sealed_run

from gnomon.harness.errors import RunFolderError
from gnomon.harness.evidence.signing import SignatureError, read_private_key, read_public_key

NO_SECRET: KeySerializationEncryption = NoEncryption()
FORMS = {
    "pem": (PrivateFormat.PKCS8, Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    "openssh": (PrivateFormat.OpenSSH, Encoding.OpenSSH, PublicFormat.OpenSSH),
}


@pytest.mark.parametrize("form", FORMS)
def test_keys_of_openssl_and_openssh_sign(form: str, tmp_path: Path) -> None:
    private_form, encoding, public_form = FORMS[form]
    key = Ed25519PrivateKey.generate()
    private, public = tmp_path / "key", tmp_path / "key.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, private_form, NO_SECRET))
    public.write_bytes(key.public_key().public_bytes(encoding, public_form))
    run = sealed_run(tmp_path / "runs")
    assert run.signer is None
    run.sign(read_private_key(private))
    assert run.signer == read_public_key(public) == key.public_key().public_bytes_raw()
    assert not run.faults()


def test_a_signature_of_another_run_does_not_fit(tmp_path: Path) -> None:
    one, other = sealed_run(tmp_path, seed=1), sealed_run(tmp_path, seed=2)
    one.sign(Ed25519PrivateKey.generate())
    (other.path / "manifest.sig").write_bytes((one.path / "manifest.sig").read_bytes())
    assert "does not fit" in str(other.faults()[0])


def test_a_run_that_is_not_whole_is_not_signed(tmp_path: Path) -> None:
    run = sealed_run(tmp_path)
    (run.path / "more.txt").write_text("x")
    with pytest.raises(RunFolderError, match=r"cannot be signed: more\.txt: added"):
        run.sign(Ed25519PrivateKey.generate())


def test_keys_that_cannot_be_used_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(SignatureError, match="cannot be read: No such file"):
        read_private_key(path)
    path.write_text("no key at all")
    with pytest.raises(SignatureError, match="no private key in PEM or OpenSSH"):
        read_private_key(path)
    with pytest.raises(SignatureError, match="no public key in PEM or OpenSSH"):
        read_public_key(path)
    curve = generate_private_key(SECP256R1())
    path.write_bytes(curve.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NO_SECRET))
    with pytest.raises(SignatureError, match="no Ed25519 key"):
        read_private_key(path)
    locked = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    path.write_bytes(locked)
    with pytest.raises(SignatureError, match="protected by a passphrase"):
        read_private_key(path)
