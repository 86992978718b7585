"""Where a client's environment lies, and whether it is complete."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from gnomon.harness.clients.catalogue import CLIENTS, Client
from gnomon.harness.errors import HarnessError

MARKER = "gnomon-client.json"
"""Written last: an environment without it was interrupted while it was built."""


class ClientError(HarnessError):
    """A client is unknown, not installed, or could not be installed; says what to do."""


@dataclass(frozen=True)
class ClientEnvironment:
    """One complete, isolated environment.

    Attributes:
        name: of the client.
        python: its interpreter; run programs with ``python -m``.
        bin: folder of its scripts.
        lock_sha256: identity of the lock it was built from.
        versions: of the packages that matter to a reader, by name.
    """

    name: str
    python: Path
    bin: Path
    lock_sha256: str
    versions: Mapping[str, str]


def client(name: str) -> Client:
    """The client of a name.

    Raises:
        ClientError: there is none.
    """
    try:
        return CLIENTS[name]
    except KeyError:
        known = ", ".join(sorted(CLIENTS))
        raise ClientError(f"there is no client named {name!r}; the clients are {known}") from None


def cache_root() -> Path:
    """Folder of all client environments, below the user's cache directory."""
    return user_cache_path("gnomon") / "clients"


def lock_sha256(of: Client) -> str:
    """Identity of a client's lock file."""
    return hashlib.sha256(of.lock.encode()).hexdigest()


def folder(of: Client) -> Path:
    """Where a client's environment belongs: one folder per lock, Python version and platform."""
    python = f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"
    identity = "\n".join((of.lock, python, sys.platform, platform.machine()))
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return cache_root() / f"{of.name}-{digest[:16]}"


def find(of: Client) -> ClientEnvironment | None:
    """A client's environment if it is complete and its interpreter still there, else None."""
    path = folder(of)
    python = path / "bin" / "python"
    try:
        marker = json.loads((path / MARKER).read_text())
    except (OSError, ValueError):
        return None
    if not python.exists():  # a symbolic link to an interpreter that was removed since
        return None
    return ClientEnvironment(
        name=of.name,
        python=python,
        bin=path / "bin",
        lock_sha256=marker["lock_sha256"],
        versions=marker["versions"],
    )


def environment(name: str) -> ClientEnvironment:
    """The installed environment of a client.

    Raises:
        ClientError: the client is unknown or not installed.
    """
    found = find(client(name))
    if found is None:
        raise ClientError(
            f"the client {name} is not installed; run `gnomon clients install` once, with access "
            "to a Python package index"
        )
    return found
