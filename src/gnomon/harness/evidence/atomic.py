"""Writing files so that a reader sees the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

_READ_BYTES = 1 << 20
UNFINISHED = ".writing-"
"""How the name of a file begins that was not written to its end; it is never anybody's content."""


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file's content in one step, on disk before it is visible."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
        fsync_path(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def fsync_path(path: Path) -> None:
    """Put a file's content, or a folder's list of names, on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, content: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, content.encode("utf-8"))


def write_json(path: Path, content: Any) -> None:
    """`write_bytes` of indented JSON with a final newline; NaN and infinities are refused."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def canonical_json(content: Any) -> bytes:
    """One byte string for equal data: sorted keys, no spaces, UTF-8, no NaN."""
    text = json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8")


def sha256_of(content: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(content).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hex digest of a file's content, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()
