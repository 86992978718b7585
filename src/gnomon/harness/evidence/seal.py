"""The seal of a run: one line that fixes its manifest, which fixes every other file.

``manifest.sha256`` is what ``sha256sum -c`` reads. A folder is a sealed run exactly when it is
there; it is written last, in one step, so a process killed while sealing leaves a run that is
whole or one that is not sealed. Links are no content: they are neither hashed nor followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from gnomon.harness.evidence.atomic import (
    UNFINISHED,
    fsync_path,
    sha256_of_file,
    write_bytes,
)
from gnomon.harness.evidence.manifest import Artifact, Manifest, content_key
from gnomon.harness.evidence.signing import Signature, SignatureError

MANIFEST = "manifest.json"
SEAL = "manifest.sha256"
SIGNATURE = "manifest.sig"
OUTSIDE = frozenset({MANIFEST, SEAL, SIGNATURE})
"""Files that the manifest does not list: itself, and what is made of it."""
_LINE = re.compile(rb"([0-9a-f]{64})  manifest\.json\n")
_READ_ONLY = 0o444


@dataclass(frozen=True)
class Fault:
    """Something in a run folder that is not what was sealed."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


def content_files(folder: Path) -> list[str]:
    """Relative paths of every file that a manifest lists, sorted."""
    found = (
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and not path.name.startswith(UNFINISHED)
    )
    return sorted(name for name in found if name not in OUTSIDE)


def hash_files(folder: Path) -> dict[str, Artifact]:
    """Hash and size of every file that a manifest lists."""
    return {
        name: Artifact(sha256=sha256_of_file(folder / name), bytes=(folder / name).stat().st_size)
        for name in content_files(folder)
    }


def settle_files(folder: Path, names: Iterator[str] | list[str]) -> None:
    """Put files and the folders around them on disk; they may only be read from now on."""
    for name in names:
        fsync_path(folder / name)
        (folder / name).chmod(_READ_ONLY)
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            fsync_path(path)


def write_seal(folder: Path) -> None:
    """The step that makes a folder with a finished manifest a sealed run."""
    digest = sha256_of_file(folder / MANIFEST)
    write_bytes(folder / SEAL, f"{digest}  {MANIFEST}\n".encode())


def sealed_hash(folder: Path) -> str | None:
    """Hash of the manifest that the seal names; None without a seal, empty for a damaged one."""
    try:
        content = (folder / SEAL).read_bytes()
    except FileNotFoundError:
        return None
    match = _LINE.fullmatch(content)
    return match[1].decode() if match else ""


def faults_of(folder: Path) -> Iterator[Fault]:
    """Everything in a run folder that differs from what was sealed; every file is read whole."""
    sealed = sealed_hash(folder)
    if sealed is None:
        yield Fault(SEAL, "missing: the run was not sealed")
        return
    if not sealed:
        yield Fault(SEAL, "changed: it is not one line of `sha256sum`")
        return
    manifest_path = folder / MANIFEST
    if not manifest_path.is_file() or manifest_path.is_symlink():
        yield Fault(MANIFEST, "missing")
        return
    content = manifest_path.read_bytes()
    if sha256_of_file(manifest_path) != sealed:
        yield Fault(MANIFEST, "changed, or its seal was")
        return
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        yield Fault(MANIFEST, f"not readable by this version: {error.errors()[0]['msg']}")
        return
    yield from _manifest_faults(folder, manifest)
    if (folder / SIGNATURE).is_file():
        try:
            Signature.read(folder / SIGNATURE).check(content)
        except SignatureError as error:
            yield Fault(SIGNATURE, str(error))


def _manifest_faults(folder: Path, manifest: Manifest) -> Iterator[Fault]:
    if manifest.run_id != folder.name:
        yield Fault(MANIFEST, f"it is of {manifest.run_id}, the folder is called {folder.name}")
    key = manifest.content_key
    if key is not None and key.sha256 != content_key(key.inputs).sha256:
        yield Fault(MANIFEST, "its content key is not the hash of the inputs it lists")
    present = content_files(folder)
    for name in sorted(set(present) - set(manifest.artifacts)):
        yield Fault(name, "added after the run was sealed")
    for name, artifact in manifest.artifacts.items():
        path = folder / name
        if name not in present:
            yield Fault(name, "missing")
        elif path.stat().st_size != artifact.bytes:
            yield Fault(name, f"{path.stat().st_size} bytes instead of {artifact.bytes}")
        elif sha256_of_file(path) != artifact.sha256:
            yield Fault(name, "changed")
