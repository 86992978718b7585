"""A run folder: created once, written atomically, sealed with the hash of every file."""

from __future__ import annotations

import datetime as dt
import json
import secrets
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gnomon.harness.errors import RunFolderError
from gnomon.harness.evidence.atomic import sha256_of_file, write_json, write_text
from gnomon.harness.evidence.manifest import SCHEMA_VERSION, Artifact, Manifest
from gnomon.harness.evidence.verdicts import Verdicts

MANIFEST = "manifest.json"
VERDICTS = "verdicts.json"
REPORT = "report.html"
RECIPE = "recipe.yaml"
ATTESTATION = "attestation.json"
REPLAY = "replay.json"
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

    @classmethod
    def create(cls, out: Path, recipe_name: str) -> RunFolder:
        """Make a new, empty folder whose name sorts by time and cannot clash."""
        stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
        path = out / f"{stamp}-{recipe_name}-{secrets.token_hex(2)}"
        path.mkdir(parents=True, exist_ok=False)
        return cls(path.resolve())

    def write_json(self, name: str, content: Any) -> None:
        """Replace a JSON file of the folder in one step."""
        write_json(self.path / name, content)

    def write_text(self, name: str, content: str) -> None:
        """Replace a text file of the folder in one step."""
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

    def seal(self, manifest: Manifest) -> None:
        """Hash every file into the manifest and write it; the last thing a run does."""
        manifest.artifacts = {
            name: Artifact(
                sha256=sha256_of_file(self.path / name),
                bytes=(self.path / name).stat().st_size,
            )
            for name in self.files()
        }
        self.save_manifest(manifest)

    def reseal(self, manifest: Manifest, name: str) -> None:
        """Renew the hash of one derived file; every other hash stays what the run recorded."""
        path = self.path / name
        manifest.artifacts[name] = Artifact(sha256=sha256_of_file(path), bytes=path.stat().st_size)
        self.save_manifest(manifest)

    def files(self) -> list[str]:
        """Relative paths of every file but the manifest; links are not followed."""
        return sorted(
            path.relative_to(self.path).as_posix()
            for path in self.path.rglob("*")
            if path.is_file() and not path.is_symlink() and path != self.path / MANIFEST
        )

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
