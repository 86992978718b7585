"""A run folder: created once, written atomically, sealed with the hash of every file."""

from __future__ import annotations

import datetime as dt
import json
import secrets
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ValidationError

from gnomon.harness.errors import RunFolderError
from gnomon.harness.evidence.atomic import UNFINISHED, write_bytes, write_json, write_text
from gnomon.harness.evidence.held import Held
from gnomon.harness.evidence.manifest import SCHEMA_VERSION, Manifest
from gnomon.harness.evidence.seal import (
    MANIFEST,
    SEAL,
    SIGNATURE,
    Fault,
    faults_of,
    hash_files,
    settle_files,
    write_seal,
)
from gnomon.harness.evidence.signing import Signature
from gnomon.harness.evidence.verdicts import Verdicts

VERDICTS = "verdicts.json"
REPORT = "report.html"
RECIPE = "recipe.yaml"
ATTESTATION = "attestation.json"
REPLAY = "replay.json"
REQUESTS = "requests.parquet"
EVALS = "evals.json"
SERVER_LOG = "server/log.txt"
METRICS_BEFORE = "server/metrics-before.txt"
METRICS_AFTER = "server/metrics-after.txt"


class RunFolder:
    """The files of one run.

    Attributes:
        path: of the folder; its name is the run's id.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: Held | None = None

    @classmethod
    def create(cls, out: Path, recipe_name: str) -> RunFolder:
        """Make a new, empty folder whose name sorts by time and cannot clash."""
        stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
        path = out / f"{stamp}-{recipe_name}-{secrets.token_hex(2)}"
        path.mkdir(parents=True, exist_ok=False)
        folder = cls(path.resolve())
        folder._held = Held.take(folder.path)
        return folder

    @property
    def sealed(self) -> bool:
        """Whether the run ended and can never change again."""
        return (self.path / SEAL).is_file()

    def require_open(self) -> None:
        """Refuse to change a sealed run.

        Raises:
            RunFolderError: it is sealed.
        """
        if self.sealed:
            raise RunFolderError(
                f"{self.path} is sealed and never changes; run the recipe again for a new folder."
            )

    def write_json(self, name: str, content: Any) -> None:
        """Replace a JSON file of the folder in one step; refused once sealed."""
        self.require_open()
        write_json(self.path / name, content)

    def write_text(self, name: str, content: str) -> None:
        """Replace a text file of the folder in one step; refused once sealed."""
        self.require_open()
        write_text(self.path / name, content)

    def read_json(self, name: str) -> Any | None:
        """A JSON file of the folder, or None where it was not written.

        Raises:
            RunFolderError: it is there and cannot be read.
        """
        path = self.path / name
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from None

    def save_manifest(self, manifest: Manifest) -> None:
        """Write the manifest as it is now."""
        self.write_json(MANIFEST, manifest.model_dump(mode="json"))

    def record(self, manifest: Manifest) -> None:
        """Hash every file into the manifest and write it; the run goes on."""
        manifest.artifacts = hash_files(self.path)
        self.save_manifest(manifest)

    def seal(self, manifest: Manifest) -> None:
        """Fix every file for good; the last thing a run does.

        The seal is one rename, after everything it covers is on disk: killed at any point, the
        folder is a whole sealed run or one that `seal` can be called for again.

        Raises:
            RunFolderError: it is sealed already, or another process is writing it.
        """
        self.require_open()
        held = self._held or Held.take(self.path)
        if held is None:
            raise RunFolderError(
                f"{self.path} is being written by a process that is alive; wait for its end."
            )
        for path in self.path.rglob(f"{UNFINISHED}*"):
            path.unlink()
        self.record(manifest)
        settle_files(self.path, [MANIFEST, *manifest.artifacts])
        write_seal(self.path)
        held.release()
        self._held = None

    def faults(self) -> tuple[Fault, ...]:
        """Everything that differs from what was sealed; every byte is read."""
        return tuple(faults_of(self.path))

    def sign(self, key: Ed25519PrivateKey) -> None:
        """Vouch for a sealed run; an earlier signature is replaced.

        Raises:
            RunFolderError: it is not sealed, or not what was sealed.
        """
        faults = [fault for fault in self.faults() if fault.file != SIGNATURE]
        if faults:
            raise RunFolderError(f"{self.path} cannot be signed: {faults[0]}.")
        content = (self.path / MANIFEST).read_bytes()
        write_bytes(self.path / SIGNATURE, Signature.make(key, content).line())

    @property
    def signer(self) -> bytes | None:
        """Public key that the signature names, None without one.

        Raises:
            SignatureError: the file is none.
        """
        path = self.path / SIGNATURE
        return Signature.read(path).signer if path.is_file() else None

    def load_manifest(self) -> Manifest:
        """The manifest of a run that was made before.

        Raises:
            RunFolderError: this is no run folder, or one of another schema version.
        """
        data = self.read_json(MANIFEST)
        if data is None:
            raise RunFolderError(
                f"{self.path} holds no {MANIFEST}: give the folder that `gnomon run` printed."
            )
        version = data.get("schema_version") if isinstance(data, dict) else None
        if version != SCHEMA_VERSION:
            raise RunFolderError(
                f"{self.path / MANIFEST} has schema version {version}, this gnomon reads "
                f"{SCHEMA_VERSION}: use the version that wrote it."
            )
        try:
            return Manifest.model_validate(data)
        except ValidationError as error:
            raise RunFolderError(f"{self.path / MANIFEST} is damaged: {error}") from None

    def load_verdicts(self) -> Verdicts | None:
        """The verdicts, or None where the run ended before it had any.

        Raises:
            RunFolderError: they are there and cannot be read.
        """
        data = self.read_json(VERDICTS)
        if data is None:
            return None
        try:
            return Verdicts.model_validate(data)
        except ValidationError as error:
            raise RunFolderError(f"{self.path / VERDICTS} is damaged: {error}") from None
