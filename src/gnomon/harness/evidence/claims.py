"""Claims: sentences of README and docs, each with the figure it rests on and what could void it.

A claim holds while a record bears it out and nothing it depends on changed since that record was
made. The four answers are told apart, because a figure nobody measured, one that a later change
may have voided, and one that a record speaks against are three different faults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gnomon.harness.errors import HarnessError
from gnomon.harness.evidence.provenance import git
from gnomon.harness.recipes.problems import dotted
from gnomon.harness.recipes.strict_yaml import read_yaml

_GIT_S = 60  # seconds for a question about many paths


class ClaimsRefused(HarnessError):
    """A file of claims cannot be used; says every reason."""


class Status(StrEnum):
    """What the records say of a claim."""

    HOLDS = "holds"
    STALE = "stale"  # borne out then; something it depends on changed since
    CONTRADICTED = "contradicted"  # a record speaks against it
    UNPROVEN = "unproven"  # no record has the figure


class Threshold(BaseModel):
    """What a value must be; at least one of the three.

    Attributes:
        equals: this very value.
        at_least: a number not below it.
        at_most: a number not above it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    equals: Any = None
    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("give equals, at_least or at_most")
        return self

    def accepts(self, value: Any) -> bool:
        """Whether a value is what the claim says."""
        if "equals" in self.model_fields_set and (
            value != self.equals or isinstance(value, bool) is not isinstance(self.equals, bool)
        ):
            return False
        bounds = (self.at_least, self.at_most)
        if bounds == (None, None):
            return True
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )

    def __str__(self) -> str:
        words = {"equals": "equal to", "at_least": "at least", "at_most": "at most"}
        return " and ".join(
            f"{words[name]} {getattr(self, name)!r}"
            for name in words
            if name in self.model_fields_set
        )


class Claim(BaseModel):
    """One sentence and what it rests on.

    Attributes:
        id: short and stable.
        says: the sentence.
        where: pages that state it, relative to the claims' file.
        record: JSON file with the figure, relative to the claims' file.
        value: where in it: a JSON pointer (RFC 6901), such as ``/layouts/fp8/save/gb_s``.
        holds: what that value must be.
        scope: what the figure may stand for, in words: machine, model, load.
        depends_on: files and folders whose change may void it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: str = Field(pattern="^[a-z0-9][a-z0-9-]*$")
    says: str = Field(min_length=1)
    where: list[str] = Field(min_length=1)
    record: str = Field(min_length=1)
    value: str = Field(pattern="^/")
    holds: Threshold
    scope: str = Field(min_length=1)
    depends_on: list[str] = Field(min_length=1)


class ClaimFile(BaseModel):
    """The contents of ``claims.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    claims: list[Claim]


@dataclass(frozen=True)
class Finding:
    """A claim and what the records say of it.

    Attributes:
        claim: the claim.
        status: the answer.
        why: the value found, what changed since, or what is missing.
    """

    claim: Claim
    status: Status
    why: str


def read_claims(path: Path) -> tuple[Claim, ...]:
    """Claims of a file.

    Raises:
        ClaimsRefused: it cannot be read, or a claim is wrong; every problem at once.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClaimsRefused(f"{path} cannot be read: {error}.") from None
    data, problems = read_yaml(text)
    found = [str(problem) for problem in problems]
    claims: list[Claim] = []
    if data is not None or not found:
        try:
            claims = ClaimFile.model_validate(data).claims
        except ValidationError as error:
            found += [_fault(each["type"], each["loc"], each["msg"]) for each in error.errors()]
    ids = [claim.id for claim in claims]
    found += [
        f"the id {each} stands at two claims."
        for each in sorted({i for i in ids if ids.count(i) > 1})
    ]
    root = path.parent
    for claim in claims:
        absent = [name for name in (*claim.where, *claim.depends_on) if not (root / name).exists()]
        found += [f"{claim.id}: {name} does not exist beside {path.name}." for name in absent]
    if found:
        listed = "\n".join(f"  - {each}" for each in found)
        raise ClaimsRefused(f"{path} is refused:\n{listed}")
    return tuple(claims)


def _fault(kind: str, place: tuple[int | str, ...], message: str) -> str:
    if kind == "extra_forbidden":
        return f"{dotted(place)}: unknown key; use one of {', '.join(Claim.model_fields)}."
    return f"{dotted(place)}: {message.removeprefix('Value error, ')}."


def check(claim: Claim, root: Path) -> Finding:
    """What the records say of a claim now.

    Args:
        claim: the claim.
        root: folder of the claims' file, in a git checkout.
    """
    record, missing = _record(root / claim.record)
    if record is None:
        return Finding(claim, Status.UNPROVEN, missing)
    try:
        value = at_pointer(record, claim.value)
    except LookupError:
        return Finding(claim, Status.UNPROVEN, f"{claim.record} has no {claim.value}")
    if not claim.holds.accepts(value):
        return Finding(claim, Status.CONTRADICTED, f"it is {value!r}, not {claim.holds}")
    changed = changed_since(record.get("commit"), claim.depends_on, root)
    if changed:
        return Finding(claim, Status.STALE, f"it was {value!r}; {changed}")
    return Finding(claim, Status.HOLDS, f"{value!r} at {record['commit'][:10]}, unchanged since")


def _record(path: Path) -> tuple[Mapping[str, Any] | None, str]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, f"there is no {path.name}"
    except (OSError, ValueError) as error:
        return None, f"{path.name} cannot be read: {error}"
    return (data, "") if isinstance(data, dict) else (None, f"{path.name} holds no JSON object")


def at_pointer(data: Any, pointer: str) -> Any:
    """The value that a JSON pointer (RFC 6901) names.

    Raises:
        LookupError: there is none.
    """
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(data, Mapping):
            data = data[name]
        elif isinstance(data, list) and name.isdigit():
            data = data[int(name)]
        else:
            raise LookupError(pointer)
    return data


def changed_since(commit: Any, paths: list[str], root: Path) -> str:
    """What of some paths differs from a commit, in words; empty where nothing does."""
    if not isinstance(commit, str) or not commit:
        return "the record names no commit, so nothing says what changed since"
    if git(root, "cat-file", "-e", f"{commit}^{{commit}}", timeout_s=_GIT_S) is None:
        return f"its commit {commit[:10]} is not in this checkout, so what changed is unknown"
    tracked = git(root, "diff", "--name-only", "--relative", commit, "--", *paths, timeout_s=_GIT_S)
    new = git(root, "ls-files", "--others", "--exclude-standard", "--", *paths, timeout_s=_GIT_S)
    if tracked is None or new is None:
        return "git cannot say what changed since"
    changed = sorted({*tracked.split("\n"), *new.split("\n")} - {""})
    if not changed:
        return ""
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return f"since {commit[:10]} changed: {', '.join(changed[:3])}{more}"
