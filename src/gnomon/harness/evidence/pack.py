"""A sealed run as one file: the same bytes wherever it is packed, proven again where it is read.

The file is a plain tar archive: seal, manifest, signature, then every file by name, without times,
owners or compression, since compressors of two versions give different bytes.
"""

from __future__ import annotations

import io
import re
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO

from gnomon.harness.errors import StoreError
from gnomon.harness.evidence.atomic import UNFINISHED, fsync_path
from gnomon.harness.evidence.folder import RunFolder
from gnomon.harness.evidence.seal import MANIFEST, SEAL, SIGNATURE, content_files, settle_files

SUFFIX = ".run.tar"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,200}")


def pack(folder: RunFolder, file: IO[bytes]) -> None:
    """Write a sealed run to a file.

    Raises:
        StoreError: it is not sealed, or not what was sealed.
    """
    faults = folder.faults()
    if faults:
        raise StoreError(f"{folder.path} cannot be packed: {faults[0]}.")
    first = [name for name in (SEAL, MANIFEST, SIGNATURE) if (folder.path / name).is_file()]
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in [*first, *content_files(folder.path)]:
            member = tarfile.TarInfo(f"{folder.path.name}/{name}")
            member.size = (folder.path / name).stat().st_size
            with (folder.path / name).open("rb") as content:
                archive.addfile(member, content)


def unpack(file: IO[bytes], into: Path, source: str) -> RunFolder:
    """Read a packed run into an unused folder and prove it there.

    Args:
        file: read once, from its beginning.
        into: a folder that gets one named after the run.
        source: what to call the file in a refusal.

    Raises:
        StoreError: it is no packed run, damaged, or not what was sealed.
    """
    try:
        with tarfile.open(fileobj=file, mode="r|") as archive:
            folder = _unpack(archive, into, source)
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise StoreError(f"{source} is no packed run, or cannot be unpacked: {error}.") from None
    faults = folder.faults()
    if faults:
        shutil.rmtree(folder.path)
        raise StoreError(f"{source} is not what was sealed: {faults[0]}. Nothing was kept of it.")
    settle_files(folder.path, [SEAL, MANIFEST, *content_files(folder.path)])
    fsync_path(into)
    return folder


def _unpack(archive: tarfile.TarFile, into: Path, source: str) -> RunFolder:
    run_id = ""
    for member in archive:
        name = PurePosixPath(member.name)
        inside = name.parts[1:]
        run_id = run_id or name.parts[0]
        if (
            not member.isreg()
            or name.parts[0] != run_id
            or not _RUN_ID.fullmatch(run_id)
            or not inside
            or ".." in inside
            or inside[-1].startswith(UNFINISHED)
        ):
            raise StoreError(f"{source} is no packed run: it holds {member.name!r}.")
        path = into.joinpath(run_id, *inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        with path.open("xb") as out:
            shutil.copyfileobj(content or io.BytesIO(), out)
    if not run_id:
        raise StoreError(f"{source} is no packed run: it is empty.")
    return RunFolder(into / run_id)
