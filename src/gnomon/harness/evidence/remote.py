"""Packed runs in files, folders and object stores, by the address fsspec knows them under."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from gnomon.harness.errors import HarnessError, StoreError
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.pack import SUFFIX, pack


def export_run(run: RunFolder, url: str) -> str:
    """Pack a run to an address; a folder, or one that ends with a slash, gets a file in it.

    The file appears under its name when it is whole.

    Raises:
        StoreError: the run cannot be packed, or the address not written.
    """
    with _said("written to", url):
        system, path = _system(url)
        folder = url.endswith("/") or system.isdir(path)
    target = f"{url.rstrip('/')}/{run.path.name}{SUFFIX}" if folder else url
    with tempfile.NamedTemporaryFile(suffix=SUFFIX) as packed:
        pack(run, packed)
        packed.flush()
        with _said("written to", target):
            system, path = _system(target)
            if not isinstance(system, LocalFileSystem):
                system.put_file(packed.name, path)  # an object is seen when it is whole
            else:
                system.makedirs(system._parent(path), exist_ok=True)
                system.put_file(packed.name, f"{path}.part")
                system.mv(f"{path}.part", path)
    return target


@contextlib.contextmanager
def open_packed(url: str) -> Iterator[IO[bytes]]:
    """A packed run, for reading once.

    Raises:
        StoreError: the address cannot be read.
    """
    with _said("read from", url):
        system, path = _system(url)
        file: IO[bytes] = system.open(path, "rb")
    with file:
        yield file


def packed_runs(url: str) -> list[str]:
    """The packed runs of an address: itself, or all in a folder that ends with a slash.

    Raises:
        StoreError: the folder cannot be read, or holds none.
    """
    if not url.endswith("/"):
        return [url]
    with _said("read from", url):
        system, path = _system(url)
        found = sorted(system.glob(f"{path.rstrip('/')}/*{SUFFIX}"))
        listed = [str(system.unstrip_protocol(each)) for each in found]
    if not listed:
        raise StoreError(f"{url} holds no packed runs (*{SUFFIX}).")
    return listed


def _system(url: str) -> tuple[Any, str]:
    system, path = url_to_fs(url)
    return system, path


@contextlib.contextmanager
def _said(what: str, url: str) -> Iterator[None]:
    try:
        yield
    except HarnessError:
        raise
    except Exception as error:  # each driver of an object store has errors of its own
        raise StoreError(f"The run cannot be {what} {url}: {error}.") from None
