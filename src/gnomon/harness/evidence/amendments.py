"""What is said of a sealed run afterwards: records that are only ever added, one file each.

A sealed run never changes, so that it was superseded, or that it must not be used, is said beside
it: who reads the store sees the run, the amendment and its reason, and nothing has disappeared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gnomon.harness.errors import StoreError
from gnomon.harness.evidence.atomic import UNFINISHED, canonical_json, sha256_of, write_bytes

_DIGITS = 16


class AmendmentKind(StrEnum):
    """What an amendment does to a run."""

    SUPERSEDED = "superseded"  # another run stands in its place
    REMOVED = "removed"  # it must not be used, and its files may go


class Amendment(BaseModel):
    """One statement about one run; the contents of a file in ``amendments``.

    Attributes:
        schema_version: of this file.
        kind: what it does.
        run_id: the run it is about.
        manifest_sha256: of that run as it was sealed.
        content_key: of that run, None if it has none.
        by: the run that supersedes it, None where it is removed.
        reason: why, in a sentence.
        at: UTC.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = 1
    kind: AmendmentKind
    run_id: str = Field(min_length=1)
    manifest_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    content_key: str | None = None
    by: str | None = None
    reason: str = Field(min_length=1)
    at: str

    @property
    def sentence(self) -> str:
        """As lists and reports print it."""
        by = f" by {self.by}" if self.by else ""
        return f"{self.kind}{by}: {self.reason}"


def add(folder: Path, amendment: Amendment) -> Path:
    """Write an amendment; its name carries its time and its hash, so no two can meet."""
    content = canonical_json(amendment.model_dump(mode="json")) + b"\n"
    stamp = "".join(filter(str.isalnum, amendment.at))
    path = folder / f"{stamp}-{amendment.kind}-{sha256_of(content)[:_DIGITS]}.json"
    write_bytes(path, content)
    return path


def read_all(folder: Path) -> Iterator[Amendment]:
    """Every amendment, oldest first.

    Raises:
        StoreError: a file is none, or was changed after it was written.
    """
    for path in sorted(folder.glob("*.json")):
        if path.name.startswith(UNFINISHED):
            continue
        content = path.read_bytes()
        if not path.stem.endswith(f"-{sha256_of(content)[:_DIGITS]}"):
            raise StoreError(
                f"{path} was changed after it was written; bring it back or delete it."
            )
        try:
            yield Amendment.model_validate(json.loads(content))
        except (ValueError, ValidationError) as error:
            raise StoreError(f"{path} is no amendment of this version: {error}") from None
